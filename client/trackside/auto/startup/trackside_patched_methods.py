"""The methods of other libraries that ``--auto`` replaces, and by which functions.

Each process with ``$TRACKSIDE_AUTO`` loads this file at its start, so it imports nothing.
"""

_SUMMARY_WRITER = (
    ("SummaryWriter.add_scalar", "trackers.add_scalar"),
    ("SummaryWriter.add_scalars", "trackers.add_scalars"),
    ("SummaryWriter.add_hparams", "trackers.add_hparams"),
)
_LIGHTNING = (
    ("Trainer.__init__", "callbacks.add_lightning"),
    ("_LoggerConnector.log_metrics", "callbacks.push_logged"),  # Lightning has no public name for it
)

PATCHED_METHODS = {
    "accelerate.accelerator": (
        ("Accelerator.init_trackers", "trackers.init_accelerate"),
        # Accelerate's own trackers get the same numbers, which count once.
        ("Accelerator.log", "method_wrapping.muting"),
        ("Accelerator.log", "trackers.log_accelerate"),
    ),
    "aim.sdk.run": (
        ("Run.add_tag", "trackers.add_tag"),
        ("BasicRun.track", "trackers.track"),
        ("BasicRun.__setitem__", "trackers.set_item"),
    ),
    "catboost.core": (("CatBoost._fit", "frameworks.fit_catboost"),),
    "clu.metric_writers.tf.summary_writer": (("SummaryWriter.write_hparams", "trackers.write_hparams"),),
    "composer.loggers.logger": (
        ("Logger.log_metrics", "method_wrapping.muting"),  # it passes on to trackers
        ("Logger.log_metrics", "trackers.log_composer"),
        ("Logger.log_hyperparameters", "trackers.add_hparams"),
    ),
    "fastai.learner": (("Learner.fit", "frameworks.fit_fastai"),),
    "hydra.core.utils": (("run_job", "searches.run_job"),),
    "ignite.engine.engine": (("Engine._fire_event", "frameworks.fire_ignite_event"),),
    "keras.src.callbacks.callback_list": (("CallbackList.__init__", "frameworks.fit_keras"),),
    "keras.src.callbacks.tensorboard": (  # it writes what the callback has pushed
        ("TensorBoard.on_train_batch_end", "method_wrapping.muting"),
        ("TensorBoard.on_epoch_end", "method_wrapping.muting"),
        ("TensorBoard.on_test_end", "method_wrapping.muting"),
    ),
    "lightgbm.engine": (("train", "frameworks.train_lightgbm"), ("cv", "frameworks.train_lightgbm")),
    "lightning.pytorch.trainer.trainer": _LIGHTNING,
    "mlflow.tracking.client": (  # which the functions of the package, such as `mlflow.log_metrics`, call
        ("MlflowClient.create_run", "trackers.create_run"),
        ("MlflowClient.log_metric", "trackers.log_metric"),
        ("MlflowClient.log_batch", "trackers.log_batch"),
        ("MlflowClient.log_param", "trackers.log_param"),
        ("MlflowClient.set_tag", "trackers.set_tag"),
        ("MlflowClient.set_terminated", "trackers.end_run"),
    ),
    "mmengine.runner.runner": (("Runner.call_hook", "frameworks.call_mmengine_hook"),),
    "optuna.study.study": (("Study.optimize", "searches.optimize"),),
    "pytorch_lightning.trainer.trainer": _LIGHTNING,
    "sklearn.model_selection._validation": (("_fit_and_score", "searches.fit_and_score"),),
    "skorch.net": (("NeuralNet.notify", "frameworks.notify_skorch"),),
    "swanlab": (("init", "trackers.init"),),
    "swanlab.sdk.internal.run": (("Run.log", "trackers.log_swanlab"), ("Run.finish", "trackers.end_run")),
    "tensorboard.plugins.scalar.summary_v2": (("scalar", "trackers.write_tf_scalar"),),
    "tensorboardX.writer": _SUMMARY_WRITER,
    "tensorflow.python.ops.summary_ops_v2": (("_ResourceSummaryWriter.__init__", "trackers.init_tf_writer"),),
    "torch": (
        ("optim.Optimizer", "pytorch.register_step_hook"),
        ("optim.Optimizer.__init__", "pytorch.note_optimizer"),
        ("nn.modules.module", "pytorch.register_module_hooks"),
        # `Tensor.backward` calls it, which `torch.compile` treats in a special way.
        ("autograd.backward", "pytorch.backward"),
        ("amp.GradScaler.scale", "pytorch.scale"),
        ("amp.GradScaler.step", "pytorch.scaler_step"),
        ("save", "pytorch.save"),
        ("utils.data.dataloader._BaseDataLoaderIter.__next__", "pytorch.next_batch"),  # the base of all iterators
        ("utils.data.dataloader._MultiProcessingDataLoaderIter.__init__", "pytorch.start_workers"),
    ),
    "torchtitan.components.metrics": (("BaseLogger.log", "trackers.log_values"),),  # others log to trackers
    "torchtune.training.metric_logging": (
        ("DiskLogger.log_dict", "trackers.log_values"),
        ("DiskLogger.log_config", "trackers.add_hparams"),
        ("StdoutLogger.log_dict", "trackers.log_values"),
        ("StdoutLogger.log_config", "trackers.add_hparams"),
    ),
    "torch._dynamo.trace_rules": (("add", "pytorch.exclude_hooks"),),
    "torch.distributed.distributed_c10d": (("Work.wait", "pytorch.wait_for_peers"),),  # that all its collectives call
    "torch.distributed.fsdp.sharded_grad_scaler": (("ShardedGradScaler.scale", "pytorch.scale"),),
    "torch.utils.tensorboard.writer": _SUMMARY_WRITER,
    "trackio": (("init", "trackers.init"),),
    "trackio.run": (("Run.log", "trackers.log_trackio"), ("Run.finish", "trackers.end_run")),
    "transformers.trainer": (
        ("DEFAULT_CALLBACKS", "callbacks.add_transformers"),
        ("CallbackHandler.on_log", "method_wrapping.muting"),  # it passes on to trackers what the callback has pushed
    ),
    "ultralytics.engine.trainer": (("BaseTrainer.run_callbacks", "frameworks.run_ultralytics_callbacks"),),
    "ultralytics.engine.validator": (("BaseValidator.run_callbacks", "frameworks.run_validator_callbacks"),),
    "wandb.sdk.wandb_init": (("init", "trackers.init_wandb"),),
    "xgboost.training": (("train", "frameworks.train_xgboost"), ("cv", "frameworks.train_xgboost")),
    "wandb.sdk.wandb_run": (("Run.log", "trackers.log_wandb"), ("Run.finish", "trackers.end_run")),
}
"""By module, once it is imported: its methods, and the functions of `trackside.auto` that return what replaces each.

Such a function gets what is replaced, and a name for the daemon's log. What it does besides needs no replacement: a list gets
one more entry, a function is called once.
"""
