"""What a round is made of, whichever engine runs it: states, clients, the server, and what travels between them."""
