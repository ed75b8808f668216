"""How ranks find each other, and how fast the network between them is."""
