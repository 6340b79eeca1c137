"""The two literals that say which chips a Tensile knows."""

globalParameters = {}
globalParameters["SupportedISA"] = [(9, 0, 6), (10, 1, 0), (10, 1, 3)]

architectureMap = {"all": "_", "gfx906": "vega20", "gfx1010": "navi10", "gfx1013": "cyan_skillfish"}
