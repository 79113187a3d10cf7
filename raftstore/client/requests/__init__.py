"""One request to a node: who is asked, what counts as an answer, which error a refusal is."""
