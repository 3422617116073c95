"""A strict fake of the vendor's SDK: the names that are documented and no others."""
