"""The local HTTP server of `regard view`. It serves the page with the numbers and tiles of attention maps.

target      captures, runs and models as targets            head_views    weights of a head, computed in bands
guard       access control and validation of requests       tiles         weights → shades → PGM
work_queue  worker threads, tickets, time limits, cache     static_files  the built page, held in memory
routes      request handlers

saved_page, saved_head: the page and recorded answers in one file      direct_calls: the application without HTTP
generation_routes, generation_session, language_target: generation by a language model, token by token
"""
