"""The DataLoader: order → plan → decode → finish, prefetched in the background."""
