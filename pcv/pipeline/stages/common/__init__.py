"""What several stages share: the problem they work on, and their chains."""
