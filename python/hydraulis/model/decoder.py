"""A Llama-type decoder on packed sequences, with the parameter names of Hugging Face minus `model.`.

The config selects Llama, Mistral, Qwen2 or Qwen3 (dense). Parallelism cuts and splits the decoder from
outside, which relies on three properties:

- A module derives its number of heads, its width and its vocabulary from its weights, not from the config.
- `layers` is keyed by the global layer index, so a parameter has one name on every pipeline stage.
- `embed_tokens`, `norm` and `lm_head` may be None.

Build the decoder under `torch.device("meta")`, which allocates and draws nothing, and bind the parameters
afterwards.

Legend: T tokens of the packed micro-batch, H hidden, I intermediate, N query heads, K key/value heads, D head
dim.
"""

import torch
from torch import Tensor, nn

from hydraulis.config.model import ModelConfig
from hydraulis.model.embedding import Embedding
from hydraulis.model.float8 import MULTIPLE, Quantize
from hydraulis.model.leaves import PLAIN, Leaves
from hydraulis.model.linear import Linear, add_adapters, map_together
from hydraulis.model.rope import RotaryTable, rotary_table
from hydraulis.model.sequences import Sequences
from hydraulis.model.swiglu import gated_product, product_not_saved


class Attention(nn.Module):
    """Grouped-query causal self-attention with rotary positions; `q_norm` and `k_norm` may be None."""

    q_norm: nn.RMSNorm | None
    k_norm: nn.RMSNorm | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        query_width = config.num_attention_heads * config.head_dim
        key_value_width = config.num_key_value_heads * config.head_dim
        self.head_dim = config.head_dim
        self.q_proj = Linear(config.hidden_size, query_width, bias=config.attention_bias)
        self.k_proj = Linear(config.hidden_size, key_value_width, bias=config.attention_bias)
        self.v_proj = Linear(config.hidden_size, key_value_width, bias=config.attention_bias)
        self.o_proj = Linear(query_width, config.hidden_size, bias=config.attention_output_bias)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps) if config.qk_norm else None

    def forward(self, x_TH: Tensor, sequences: Sequences, rotary: RotaryTable) -> Tensor:
        """Attend inside each segment; [T, H] in, [T, H] out."""
        heads = (-1, self.head_dim)
        maps = self.q_proj, self.k_proj, self.v_proj
        q_TND, k_TKD, v_TKD = (y.unflatten(-1, heads) for y in map_together(x_TH, *maps))
        if self.q_norm is not None and self.k_norm is not None:
            q_TND, k_TKD = self.q_norm(q_TND), self.k_norm(k_TKD)
        o_TND = sequences.attend(rotary.rotate(q_TND), rotary.rotate(k_TKD), v_TKD)
        y_TH: Tensor = self.o_proj(o_TND.flatten(1))
        return y_TH


class MLP(nn.Module):
    """SwiGLU feed-forward: `down(silu(gate(x)) * up(x))`."""

    leaves: Leaves = PLAIN

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x_TH: Tensor) -> Tensor:
        """Transform each token separately; [T, H] in, [T, H] out."""
        gate_TI, up_TI = map_together(x_TH, self.gate_proj, self.up_proj)
        product_TI = gated_product(gate_TI, up_TI, self.leaves.product)
        with product_not_saved(product_TI):
            y_TH: Tensor = self.down_proj(product_TI)
        return y_TH


class DecoderLayer(nn.Module):
    """Pre-norm attention and pre-norm MLP, each added to the residual stream."""

    leaves: Leaves = PLAIN

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = MLP(config)
        if config.adapters is not None:
            add_adapters(self, config.adapters)

    def forward(self, x_TH: Tensor, sequences: Sequences, rotary: RotaryTable) -> Tensor:
        """Return the residual stream after this layer, [T, H]."""
        x_TH, normed_TH = self.leaves.add_norm(x_TH, None, self.input_layernorm)
        attended_TH = self.self_attn(normed_TH, sequences, rotary)
        x_TH, normed_TH = self.leaves.add_norm(x_TH, attended_TH, self.post_attention_layernorm)
        y_TH: Tensor = x_TH + self.mlp(normed_TH)
        return y_TH


class Decoder(nn.Module):
    """Embedding, decoder layers, final norm and head, or one stage's part of them.

    The forward stops before the head: the loss computes the logits from the head's weight, chunk by chunk.
    """

    embed_tokens: Embedding | None
    norm: nn.RMSNorm | None
    lm_head: nn.Linear | None
    leaves: Leaves = PLAIN

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        # Passed in, because drawing normal values on the meta device imports torch._dynamo, which takes 1.4
        # s.
        embedding_VH = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, _weight=embedding_VH)
        self.layers = nn.ModuleDict({str(i): DecoderLayer(config) for i in range(config.num_hidden_layers)})
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tie_weights()

    def tie_weights(self) -> None:
        """Make the head use the embedding's parameter if the config ties them and both are present.

        Call this method again after replacing `embed_tokens.weight`. A stage with the head alone has a
        separate parameter, bound to the same master parameter (`master_parameter_name`).
        """
        if self.config.tie_word_embeddings and self.embed_tokens is not None and self.lm_head is not None:
            self.lm_head.weight = self.embed_tokens.weight

    def use_leaves(self, leaves: Leaves) -> None:
        """Replace the elementwise operations of every layer and of the embedding."""
        self.leaves = leaves
        if self.embed_tokens is not None:
            self.embed_tokens.add_rows = leaves.add_rows
        for layer in self.layers.values():
            assert isinstance(layer, DecoderLayer)
            layer.leaves = layer.mlp.leaves = leaves

    def use_float8(self, quantize: Quantize) -> None:
        """Let the linear maps of every layer multiply in float8, where the products have a kernel.

        Call this method when the weights are sliced: a map keeps its dtype where a dimension of its weight is
        no multiple of 16.

        Args:
            quantize: Function that rounds a factor.
        """
        for module in self.layers.modules():
            if isinstance(module, Linear) and all(size % MULTIPLE == 0 for size in module.weight.shape):
                module.quantize = quantize

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        """Run the present modules.

        Args:
            x: Input: tokens_T if the embedding is present, otherwise hidden_TH.
            sequences: Sequences of the T tokens.

        Returns:
            hidden_TH, the residual stream, normalised if the final norm is present.
        """
        if self.embed_tokens is not None:
            x = self.embed_tokens(x)
        rotary = rotary_table(sequences.position_T, self.config, x.dtype)._replace(kernel=self.leaves.rotate)
        for layer in self.layers.values():
            x = layer(x, sequences, rotary)
        if self.norm is not None:
            x = self.norm(x)
        return x
