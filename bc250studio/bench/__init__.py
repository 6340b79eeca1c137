"""One protocol (cool, alternate, repeat, record, compare) and the recipes that follow it."""
