"""The DataLoader: order → plan → decode → finish, ahead of the trainer."""
