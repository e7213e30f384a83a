"""What tools print of links."""

SUMS = """# nThread 1 nGpus 3 minBytes 1024 maxBytes 1000000000
#  Rank  0 Group  0 Pid   100 on node1 device  0 [0x07] A
#  Rank  1 Group  0 Pid   100 on node1 device  1 [0x0f] A
#  Rank  2 Group  0 Pid   100 on node1 device  2 [0x47] A
#       size         count      type   redop    root     time   algbw   busbw #wrong     time
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)
        1024           256     float     sum      -1    101.0    0.01    0.01      0    101.0
     1000000        250000     float     sum      -1   1100.0    0.91    1.21      0   1100.0
  1000000000     250000000     float     sum      -1  1000100    1.00    1.33      0  1000100
# Out of bounds values : 0 OK
"""
