"""What travels between the controller, the ranks and the keeper: messages, channels, shared progress."""
