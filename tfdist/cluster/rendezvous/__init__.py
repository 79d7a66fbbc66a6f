"""The rendezvous: workers find each other before TensorFlow starts, and notice lost peers."""

__all__: list[str] = []  # internal
