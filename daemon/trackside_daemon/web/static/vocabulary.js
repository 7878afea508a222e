// What the daemon and its pages both name. docs/generate.py writes it from the daemon's code.
// The states of a run that has ended.
export const ENDED = ["failed", "lost", "stopped", "finished"];
// The states that a capture never leaves.
export const FINAL = ["failed", "summarised"];
// From the least to the most severe.
export const SEVERITIES = ["info", "warning", "critical"];
// The alerts that the overview lists at most.
export const MAX_ALERTS = 200;
// The names of the loss, the best first.
export const LOSSES = ["loss", "train/loss", "train_loss", "loss/train", "Loss/train", "train/batch_loss",
  "train/epoch_loss"];
// Other losses end or begin so.
export const LOSS_ENDS = ["/loss", "_loss"];
export const LOSS_BEGINS = "loss/";
// Words of the keys whose lowest value is the best one.
export const LOWER_IS_BETTER = ["cer", "duration", "err", "error", "errors", "fid", "latency", "loss", "losses", "mae",
  "ms", "mse", "nll", "perplexity", "ppl", "rmse", "sec", "seconds", "time", "wait", "wer"];
export const HIGHER_IS_BETTER = ["acc", "accuracy", "auc", "bleu", "dice", "f1", "iou", "mfu", "precision", "psnr",
  "recall", "reward", "rouge", "score", "scores", "ssim", "throughput", "top1", "top5"];
// Words of the keys of which no value is better.
export const SPREAD = ["std", "stddev", "stdev", "var", "variance"];
