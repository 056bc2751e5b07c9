"""`LocalSGD` inside other libraries, each of which is imported only where it is used."""
