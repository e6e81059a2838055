"""Training heads between the sentence vector and the contrastive loss, found by name in `PROJECTIONS`."""

from collections.abc import Callable

from torch import Tensor, nn

from .distributed import gather_rows, own_rows


class MLPProjection(nn.Module):
    """A fresh Linear and Tanh, (B, H) → (B, H): SimCSE's training head, not BERT's pretrained pooler."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, sentences: Tensor) -> Tensor:
        return self.dense(sentences).tanh()  # (B, H)


class BatchNormProjection(nn.Module):
    """Linear H→2H, BatchNorm, ReLU, Linear 2H→H, BatchNorm without affine, (B, H) → (B, H): the head of InfoCSE and
    DiffCSE.

    The linear layers have no bias. In training, the statistics are over all views of all processes together. In
    evaluation they are fixed, and no process needs another one's rows.

    Raises:
        ValueError: a single row in training, which has no variance.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(hidden_size, 2 * hidden_size, bias=False),
            nn.BatchNorm1d(2 * hidden_size),
            nn.ReLU(),
            nn.Linear(2 * hidden_size, hidden_size, bias=False),
            nn.BatchNorm1d(hidden_size, affine=False),
        )

    def forward(self, sentences: Tensor) -> Tensor:
        if not self.training:
            return self.layers(sentences)  # (B, H)
        rows = gather_rows(sentences)  # (W·B, H)
        if len(rows) < 2:
            raise ValueError(
                "projection batchnorm expects at least 2 vectors in a training batch, found 1; use larger batches or "
                "another projection"
            )
        return own_rows(self.layers(rows))  # (B, H)


class NonlinearProjection(nn.Module):
    """Linear, ReLU, Linear, (B, H) → (B, H): the non-linear head of CLEAR (§3.1). CLEAR gives no sizes; here all
    are the backbone's. It is used in training only."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, hidden_size))

    def forward(self, sentences: Tensor) -> Tensor:
        return self.layers(sentences)  # (B, H)


PROJECTIONS: dict[str, Callable[[int], nn.Module]] = {
    "mlp": MLPProjection,
    "batchnorm": BatchNormProjection,
    "nonlinear": NonlinearProjection,
    "none": nn.Identity,  # the sentence vector itself: it takes any argument
}
