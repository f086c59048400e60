"""Systems: each answers questions with ranked entities and the evidence they rest on."""
