"""Find the llama.cpp settings that serve a GGUF model best on this machine, by measuring them.

The map, in the order of a sweep (each arrow is one stage, each stage one module or package):

    machine --probe--> Host          file --gguf--> GgufFacts        engine --hello--> Device, EngineBuild
        Workload + Goal + budget --search--> Trial --engine--> TrialResult --store--> journal
        TrialResult --stats, recommend--> Recommendation --export--> profile, snippet, command --report--> screen

Floors, enforced by tests/test_floors.py; a module imports only what stands below it:

    0  units  errors  records  sweeps                  words, standard library only
    1  stats  footprint  search  recommend             judgement: pure functions of records
    1  probe  gguf  engine  store  export  report  install    hands: touch the world, decide nothing
    2  pipeline                                        the conductor, the only one that knows both
    3  cli                                             the face

Importing this package loads no engine, no NVML and no command line.
"""

__version__ = "0.1.0"
