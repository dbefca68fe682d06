"""A decoder in the form in which torchtitan trains one: compiled, packed without padding, by autocast.

Each layer is compiled in two parts, before and after attention, and so is the loss of all tokens at once. On
one device torchtitan keeps parameters in float32 and computes by autocast; AdamW is torch's fused one.
Attention is Hydraulis's kernel. The code is our own; parameters have the names of Hydraulis's decoder.

Legend: T tokens of the packed micro-batch, H hidden, D head dim, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydraulis.config.model import ModelConfig
from hydraulis.model.attention.kernel import Segments
from hydraulis.model.attention.varlen import varlen_attention
from hydraulis.model.sequences import IGNORE_INDEX


class _Attention(nn.Module):
    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        queries, keys = (n * model.head_dim for n in (model.num_attention_heads, model.num_key_value_heads))
        self.q_proj = nn.Linear(model.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(model.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(model.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, model.hidden_size, bias=False)


class _FeedForward(nn.Module):
    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(model.hidden_size, model.intermediate_size, bias=False)
        self.up_proj = nn.Linear(model.hidden_size, model.intermediate_size, bias=False)
        self.down_proj = nn.Linear(model.intermediate_size, model.hidden_size, bias=False)


class _Layer(nn.Module):
    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.head_dim = model.head_dim
        self.input_layernorm = nn.RMSNorm(model.hidden_size, eps=model.rms_norm_eps)
        self.self_attn = _Attention(model)
        self.post_attention_layernorm = nn.RMSNorm(model.hidden_size, eps=model.rms_norm_eps)
        self.mlp = _FeedForward(model)


class CompiledDecoder(nn.Module):
    """The decoder with its loss.

    Args:
        model: Shape of the model, without biases, tied embeddings or norms of heads.
        backend: Backend of `torch.compile`: `inductor`, or `eager` where there is no compiler.
    """

    def __init__(self, model: ModelConfig, backend: str) -> None:
        super().__init__()
        self.model = model
        self.embed_tokens = nn.Embedding(model.vocab_size, model.hidden_size)
        self.layers = nn.ModuleDict({str(i): _Layer(model) for i in range(model.num_hidden_layers)})
        self.norm = nn.RMSNorm(model.hidden_size, eps=model.rms_norm_eps)
        self.lm_head = nn.Linear(model.hidden_size, model.vocab_size, bias=False)

        def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
            return torch.compile(function, fullgraph=True, backend=backend)

        self._before, self._after, self._loss = compiled(_before), compiled(_after), compiled(_sum_loss)

    def forward(self, token_T: Tensor, target_T: Tensor, position_T: Tensor, segments: Segments) -> Tensor:
        """Return the sum of the losses of all targets."""
        cos_TD, sin_TD = _angles(position_T, self.model)
        x_TH = self.embed_tokens(token_T)
        for layer in self.layers.values():
            q_TND, k_TKD, v_TKD = self._before(layer, x_TH, cos_TD, sin_TD)
            x_TH = self._after(layer, x_TH, varlen_attention(q_TND, k_TKD, v_TKD, segments))
        loss: Tensor = self._loss(self.norm, self.lm_head, x_TH, target_T)
        return loss


def _before(layer: _Layer, x_TH: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> tuple[Tensor, ...]:
    """Normalise, project to heads, and rotate queries and keys."""
    y_TH, heads = layer.input_layernorm(x_TH), (-1, layer.head_dim)
    q, k, v = (project(y_TH).unflatten(-1, heads) for project in _projections(layer))
    return _rotated(q, cos_TD, sin_TD).to(v.dtype), _rotated(k, cos_TD, sin_TD).to(v.dtype), v


def _projections(layer: _Layer) -> tuple[nn.Linear, ...]:
    return layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj


def _rotated(x_TND: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    left, right = x_TND.chunk(2, dim=-1)
    return x_TND * cos_TD[:, None] + torch.cat((-right, left), dim=-1) * sin_TD[:, None]


def _after(layer: _Layer, x_TH: Tensor, o_TND: Tensor) -> Tensor:
    """Add attention's output and the MLP's to the residual stream."""
    x_TH = x_TH + layer.self_attn.o_proj(o_TND.flatten(1))
    y_TH, mlp = layer.post_attention_layernorm(x_TH), layer.mlp
    added: Tensor = x_TH + mlp.down_proj(F.silu(mlp.gate_proj(y_TH)) * mlp.up_proj(y_TH))
    return added


def _sum_loss(norm: nn.RMSNorm, head: nn.Linear, x_TH: Tensor, target_T: Tensor) -> Tensor:
    logits_TV = head(norm(x_TH)).float()
    return F.cross_entropy(logits_TV, target_T, ignore_index=IGNORE_INDEX, reduction="sum")


def _angles(position_T: Tensor, model: ModelConfig) -> tuple[Tensor, Tensor]:
    exponent_P = torch.arange(0, model.head_dim, 2, device=position_T.device) / model.head_dim
    angle_TP = position_T.float()[:, None] * model.rope_theta**-exponent_P
    angle_TD = torch.cat((angle_TP, angle_TP), dim=-1)
    return angle_TD.cos(), angle_TD.sin()
