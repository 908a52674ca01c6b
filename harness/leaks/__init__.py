"""What a test leaves behind on a rank: snapshots, where it was made, how it is described."""
