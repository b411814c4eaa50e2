"""ONNX graphs that take the columns of a table by their names: a wrong order or a forgotten scaling is impossible."""

from typing import Any

from fedetf.data.kinds import TableNote
from fedetf.data.kinds.table import UNKNOWN

PREFIX = "net/"  # before all names inside the graph: a column may be called whatever it likes


def with_named_columns(model: Any, note: TableNote, raw: str) -> Any:
    """``model`` (an ``onnx.ModelProto`` whose input ``raw`` is ``[n, columns]``) with one input for each column.

    Each is ``[n, 1]``: numbers are double, with NaN for a missing one; categories are text, with "" for a missing one.
    """
    from onnx import TensorProto, compose, helper

    model = compose.add_prefix(model, PREFIX, rename_outputs=False)
    graph, inner = model.graph, PREFIX + raw
    inputs, nodes, parts = [], [], []
    for j, column in enumerate(note.columns):
        number = column.categories is None
        kind = TensorProto.DOUBLE if number else TensorProto.STRING
        inputs.append(helper.make_tensor_value_info(column.name, kind, ["batch", 1]))
        if number:
            parts.append(column.name)
            continue
        codes, part = f"{PREFIX}code {j}", f"{PREFIX}column {j}"
        nodes += [
            _encoder(column.name, codes, column.categories or []),
            helper.make_node("Cast", [codes], [part], to=11),
        ]
        parts.append(part)
    nodes.append(helper.make_node("Concat", parts, [inner], axis=1))
    others = [value for value in graph.input if value.name != inner]
    del graph.input[:]
    graph.input.extend([*inputs, *others])
    before = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *before])
    if any(column.categories is not None for column in note.columns):
        model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return model


def _encoder(text: str, codes: str, categories: list[str]) -> Any:
    """The position of a category in its list; all others are unknown."""
    from onnx import helper

    known = categories or [""]
    places = [float(i) for i in range(len(known))] if categories else [UNKNOWN]
    return helper.make_node(
        "LabelEncoder",
        [text],
        [codes],
        domain="ai.onnx.ml",
        keys_strings=known,
        values_floats=places,
        default_float=UNKNOWN,
    )
