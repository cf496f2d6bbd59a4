"""The speed law: how long settings take, before they are measured. Pure arithmetic on a header and on rates.

terms   settings and a prompt -> bytes, operations and counts of each term
law     coefficients and how well they are known; runs teach them
priors  what is believed of machines of a kind before any run: fitted on published records
"""
