# A configuration of Hydra with a callback by its name.
import hydra, trackside
from hydra.utils import instantiate
from omegaconf import OmegaConf

cfg = OmegaConf.create({
    "lr": 0.1,
    "twice": "${lr}",
    "callbacks": [{"_target_": "trackside.integrations.transformers.TracksideCallback", "watch": True}],
})
run = trackside.init("hydra", config=cfg)
run.push(loss=1.0)
print(type(instantiate(cfg.callbacks[0])).__name__)
