"""Speech made on the spot: a corpus with exact times, from a synthesiser that needs no download."""
