"""One file per engine protocol: probe, encode, decode, abort, error table."""
