"""What happens while a run goes on: results gathered, counted and shown."""
