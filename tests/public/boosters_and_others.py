# A training of each of the frameworks that are not PyTorch loops; each prints its own log as JSON.
import json
import sys

import numpy as np

kind, ours = sys.argv[1], []
if "line" in sys.argv[2:]:
    module = __import__(f"trackside.integrations.{kind}", fromlist=["TracksideCallback"])
    ours = [module.TracksideCallback(kind)]
rng = np.random.default_rng(0)
X = rng.normal(size=(300, 4))
y = (X.sum(1) > 0).astype(int)

if kind == "xgboost":
    import xgboost as xgb

    log, data = {}, xgb.DMatrix(X, y)
    for eta in (0.1, 0.2) if not ours else (0.1,):
        settings = {"objective": "binary:logistic", "eta": eta, "nthread": 1}
        stops = [xgb.callback.EarlyStopping(1, min_delta=0.05)]  # before ours, so that ours does not see the last round
        given = [(data, "train")]  # by its place, which XGBoost names by keyword alone
        xgb.train(settings, data, 12, given, evals_result=log, verbose_eval=False, callbacks=[*stops, *ours])
        print(json.dumps({"train/logloss": log["train"]["logloss"]}))
elif kind == "lightgbm":
    import lightgbm as lgb

    settings = {"objective": "binary", "verbose": -1, "num_threads": 1, "learning_rate": 0.5}
    for _ in range(1 if ours else 2):
        log, data = {}, lgb.Dataset(X, y)
        valid = lgb.Dataset(-X[:50], y[:50], reference=data)  # wrong, so that it stops early
        callbacks = [lgb.early_stopping(3, verbose=False), lgb.record_evaluation(log), *ours]
        lgb.train(settings, data, 50, valid_sets=[valid], callbacks=callbacks)
        print(json.dumps({"valid_0/binary_logloss": log["valid_0"]["binary_logloss"]}))
elif kind == "catboost":
    from catboost import CatBoostClassifier

    model = CatBoostClassifier(iterations=12, verbose=0, allow_writing_files=False, thread_count=1)
    model.fit(X, y, eval_set=(X[:50], y[:50]), callbacks=ours or None)
    log = model.get_evals_result()
    print(json.dumps({f"{data}/Logloss": log[data]["Logloss"] for data in ("learn", "validation")}))
elif kind == "keras":
    import keras

    class Means(keras.callbacks.Callback):
        means: list = []

        def on_train_batch_end(self, batch, logs=None):
            self.means.append((batch, float(logs["loss"])))

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    log = model.fit(
        *(X[:288].astype("float32"), y[:288].astype("float32")[:, None]),
        **{"epochs": 3, "batch_size": 32, "verbose": 0, "callbacks": [Means(), *ours]},
        validation_data=(X[288:].astype("float32"), y[288:].astype("float32")[:, None]),
    )
    losses, before = [], 0.0
    for batch, mean in Means.means:
        losses.append((batch + 1) * mean - batch * (before if batch else 0.0))
        before = mean
    print(json.dumps({"loss": losses}))
    print(json.dumps({"eval/loss": [float(value) for value in log.history["val_loss"]]}))
else:
    import torch
    from fastai.basics import DataLoader, DataLoaders, Learner, accuracy

    torch.manual_seed(0)
    rows = list(zip(torch.tensor(X).float(), torch.tensor(y)))
    loaders = DataLoaders(DataLoader(rows, bs=50, shuffle=False), DataLoader(rows[:64], bs=32))
    learner = Learner(loaders, torch.nn.Linear(4, 2), loss_func=torch.nn.CrossEntropyLoss(), metrics=accuracy, cbs=ours)
    learner.logger = lambda *_: None
    losses = []

    class Losses(torch.nn.Module):
        def forward(self, output, target):
            loss = torch.nn.functional.cross_entropy(output, target)
            if learner.training:
                losses.append(loss.item())
            return loss

    learner.loss_func = Losses()
    learner.fit(2, 1e-2)
    learner.fit(1, 1e-2)
    print(json.dumps({"loss": losses}))
