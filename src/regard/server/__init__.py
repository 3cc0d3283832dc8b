"""The server of `regard view`: numbers and tiles of maps to the page, from this machine to this machine.

target      what is shown: a capture, a run, a model        head_views    a head's numbers, in bands that can be stopped
guard       who may ask, and for how much                   tiles         numbers → shades → PGM
work_queue  a few threads, tickets, time limits, the cache  static_files  the built page, held in memory
routes      what is asked, and the answers
"""
