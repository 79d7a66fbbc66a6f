"""The dialect of graphs and sessions: variables whose values are read by a session."""
