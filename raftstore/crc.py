"""CRC-32, the checksum of frames, records and stored rows, and what keys are partitioned by.

The one of zlib, by a library that computes the same numbers three to nine times as fast (decision
0047): they are part of what is stored and sent, so another polynomial would be another format.
"""

from isal.isal_zlib import crc32

__all__ = ["crc32"]
