"""What engines hold in their KV caches, as far as their events tell it, and how much of a prompt that is."""
