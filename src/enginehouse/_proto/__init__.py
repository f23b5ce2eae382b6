"""Generated protobuf code; see proto/ and scripts/protos."""
