"""Model cards: what a reader of a model's file must know, as Markdown, and nothing that is not known."""

from pathlib import Path

import tomli_w

from fedetf.data.kinds import TableNote
from fedetf.errors import visible
from fedetf.models.load import Model, SavedModel
from fedetf.redact import bare

HOW_TO_LOAD = {
    ".safetensors": """import fedetf

model = fedetf.load("{name}")
probabilities = model(inputs)  # a torch tensor, as below""",
    ".onnx": """import onnxruntime

session = onnxruntime.InferenceSession("{name}")
(probabilities,) = session.run(None, {{"inputs": inputs}})  # NumPy arrays, as below""",
    ".pt2": """import torch

model = torch.export.load("{name}").module()
probabilities = model(inputs)  # a torch tensor, as below""",
}

TABLE_TO_ONNX = """import onnxruntime
import pandas

session = onnxruntime.InferenceSession("{name}")
text = {{column.name: str for column in session.get_inputs() if column.type == "tensor(string)"}}
table = pandas.read_csv("rows.csv", dtype=text).fillna(dict.fromkeys(text, ""))
types = {{column.name: object if column.name in text else float for column in session.get_inputs()}}
columns = {{name: table[[name]].to_numpy(kind) for name, kind in types.items()}}
(probabilities,) = session.run(None, columns)"""
DRAWN = ("partition", "alpha", "size_alpha", "shards", "clients")  # what says nothing where a column names the sites


def model_card(model: Model, file: SavedModel, target: Path) -> str:
    """Origin, results and what they were measured on, inputs, classes, how to load it."""
    settings, portable = file.settings, file.settings.portable()
    method, encoder = bare(settings.method.name), bare(settings.model.name)
    portable["method"]["name"], portable["model"]["name"] = method, encoder
    if settings.data.site_column:
        portable["data"] = {key: value for key, value in portable["data"].items() if key not in DRAWN}
    whose = "the global model" if file.client is None else f"the personal model of {_client(file)}"
    return f"""# {method} on {bare(settings.data.name)}: {whose}

Made by federated learning with fedetf: {_held(file)}, {settings.train.rounds} rounds, encoder `{encoder}`, seed
{settings.seed}.

## Intended use

To be filled in by whoever publishes the model: what it is for, whom it may affect, and what it must not be used for.

## Results

{_results(file)}
## Load it

```python
{_how_to_load(model, target)}
```

{_inputs(model, target.suffix)}
- outputs: probabilities `[n, {len(model.classes)}]`, in the order of the classes.

## Classes

{_classes(model, file)}

## Settings

```toml
{tomli_w.dumps(portable).strip()}
```
"""


def _client(file: SavedModel) -> str:
    number = file.client
    assert number is not None
    return file.about.sites[number] if number < len(file.about.sites) else f"client {number}"


def _held(file: SavedModel) -> str:
    """Who held the data."""
    data, sites = file.settings.data, file.about.sites
    if sites:
        return f"{len(sites)} sites ({', '.join(sites)})"
    return f"{data.clients} clients ({data.describe()})"


def _results(file: SavedModel) -> str:
    """The accuracy, and on what it was measured."""
    data = file.settings.data
    if file.client is None:
        of = f"general: final global model on the test set ({file.about.held_out or 'of the dataset'})"
    else:
        of = f"personal: this model on the {data.test_fraction:.0%} of its samples that {_client(file)} held out"
    accuracy = "not measured" if file.accuracy is None else f"{file.accuracy:.4f}"
    about, always = file.about, "for comparison: always the most frequent class of its training samples"
    rows = [f"| accuracy | {of} | {accuracy} |"]
    if file.client is not None and about.majority is not None:
        rows.append(f"| accuracy | {always} | {about.majority:.4f} |")
    if file.client is None:
        for name in about.sites:
            at_site = {
                f"general: this model on what {name} held out": about.site_general.get(name),
                f"personal: the model of {name}, on what it held out itself": about.site_accuracies.get(name),
                f"{always}, at {name}": about.site_majority.get(name),
            }
            rows += [f"| accuracy | {what} | {value:.4f} |" for what, value in at_site.items() if value is not None]
    return "| measure | of what | fraction |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _classes(model: Model, file: SavedModel) -> str:
    """Their names in order, with the share of each that the global model got right, where that is known."""
    recalls = file.about.recalls
    if len(recalls) != len(model.classes):
        return ", ".join(f"{number}: {name}" for number, name in enumerate(model.classes))
    shown = ["-" if recall is None else f"{recall:.4f}" for recall in recalls]
    rows = [f"| {k} | {name} | {recall} |" for k, (name, recall) in enumerate(zip(model.classes, shown, strict=True))]
    return "| number | class | found in the test set (recall) |\n|---|---|---|\n" + "\n".join(rows)


def _how_to_load(model: Model, target: Path) -> str:
    by_name = isinstance(model.inputs.note, TableNote) and target.suffix == ".onnx"
    code = TABLE_TO_ONNX if by_name else HOW_TO_LOAD[target.suffix]
    return code.format(name=target.name) + _rows_too(model, target)


def _rows_too(model: Model, target: Path) -> str:
    if model.inputs.note is None or target.suffix != ".safetensors":
        return ""
    return '\nprobabilities = model.rows("rows.csv")  # the same from a CSV or Parquet file, or a DataFrame'


def _inputs(model: Model, suffix: str) -> str:
    """What goes in: shape and meaning; of a table its columns, in their order."""
    note, shape = model.inputs.note, ", ".join(map(str, model.inputs.shape))
    if note is None:
        kind = "uint8 images, pixels 0 to 255, not normalised" if model.inputs.are_images else "float32 numbers"
        read = "The preprocessing is part of the model." if model.inputs.are_images else "They are used as they are."
        return f"- inputs: `[n, {shape}]`, {kind}. {read}"
    header, *rows = note.describe()
    cells = [[visible(cell).replace("|", "\\|") for cell in row] for row in rows]
    table = "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *cells))
    return f"- inputs: {note.sentence(suffix == '.onnx')} The preprocessing is part of the model.\n\n{table}\n"
