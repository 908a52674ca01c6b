"""What worlds share on one host: slots on its cores, and who holds them."""
