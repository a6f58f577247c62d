"""The shape of a transformer, as far as its memory depends on it, and its parameters."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, 2024): keys and values as one small vector."""

    query_rank: int
    kv_rank: int
    key_dim: int  # without the rotated part
    rotated_dim: int
    value_dim: int

    @property
    def cached_width(self) -> int:
        """Numbers that a token keeps in each layer."""
        return self.kv_rank + self.rotated_dim


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture-of-experts feed-forward part."""

    count: int
    active: int
    width: int  # of one
    shared: int = 0  # experts of the same width that always run
    dense_layers: int = 0  # the first ones have an ordinary feed-forward part


@dataclass(frozen=True, slots=True)
class ModelShape:
    """One model."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int  # width of the dense part; 0 where every layer has experts
    vocabulary: int
    tied_embeddings: bool = False
    experts: Experts | None = None
    latent: LatentAttention | None = None
    window: int | None = None  # of the layers that see only so many tokens back
    window_layers: int = 0
    context_max: int = 131_072
    native_precision: str = "bf16"  # that its weights are published in
    licence: str = ""

    @property
    def embedding_parameters(self) -> int:
        """Input and output embeddings."""
        return self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2)

    @property
    def attention_parameters(self) -> int:
        """Projections of all layers, and the norms."""
        latent = self.latent
        if latent is None:
            query = self.hidden * self.heads * self.head_dim
            kv = 2 * self.hidden * self.kv_heads * self.head_dim
            one = 2 * query + kv
        else:
            query = self.hidden * latent.query_rank + latent.query_rank * self.heads * (
                latent.key_dim + latent.rotated_dim
            )
            kv = self.hidden * latent.cached_width + latent.kv_rank * self.heads * (
                latent.key_dim + latent.value_dim
            )
            one = query + kv + self.heads * latent.value_dim * self.hidden
        return self.layers * (one + 2 * self.hidden) + self.hidden

    @property
    def dense_parameters(self) -> int:
        """Feed-forward parts that every token passes, shared experts and routers included."""
        experts = self.experts
        if experts is None:
            return self.layers * 3 * self.hidden * self.feed_forward
        sparse_layers = self.layers - experts.dense_layers
        dense = experts.dense_layers * 3 * self.hidden * self.feed_forward
        shared = sparse_layers * experts.shared * 3 * self.hidden * experts.width
        return dense + shared + sparse_layers * self.hidden * experts.count

    @property
    def expert_parameters(self) -> int:
        """Experts of which a token passes a few."""
        experts = self.experts
        if experts is None:
            return 0
        one = 3 * self.hidden * experts.width
        return (self.layers - experts.dense_layers) * experts.count * one

    @property
    def parameters(self) -> int:
        """All of them."""
        return (
            self.embedding_parameters
            + self.attention_parameters
            + self.dense_parameters
            + self.expert_parameters
        )

    @property
    def active_parameters(self) -> int:
        """Those that one token passes; the output embedding counts, the input's look-up not."""
        experts = self.experts
        sparse = 0 if experts is None else self.expert_parameters * experts.active // experts.count
        output = self.vocabulary * self.hidden
        return output + self.attention_parameters + self.dense_parameters + sparse
