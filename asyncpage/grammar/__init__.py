"""Grammars: JSON Schema, regular expressions and GBNF to networks over bytes, and those to masks over a vocabulary."""
