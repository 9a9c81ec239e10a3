"""Test doubles and conformance kits that ship with the package."""
