"""What some training frameworks need beyond a torch DataLoader; each module imports its framework, and nothing imports it unasked."""
