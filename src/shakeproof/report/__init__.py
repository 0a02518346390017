"""Pictures and pages. Nothing here decides anything."""
