"""Tables, texts, signals and sound: statistics against NumPy, preparation against SciPy, and one line for bad data."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow
import pytest
import torch
from scipy.io import wavfile
from scipy.signal import stft

import fedetf
from fedetf import UserError
from fedetf.cli import main
from fedetf.data import deal_out, load_dataset
from fedetf.data.fit import fit
from fedetf.data.frames import Frame, from_pandas, of_columns, read_csv
from fedetf.data.kinds import KINDS, SignalNote, SoundNote, Sums, TableNote, TextNote
from fedetf.data.kinds.sound import LogMel, mel_bands
from fedetf.data.own import as_table
from fedetf.settings import DataSettings

QUICK = {"rounds": 1, "epochs": 1, "settings": {"personal.enabled": False, "train.batch_size": 16}}


# --- tables -----------------------------------------------------------------------------------------------------------


def frame(seed: int, n: int = 20) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    numbers = 1e6 + rng.normal(seed, 1e-3, n)  # a mean far larger than the spread
    words = rng.choice(["a", "b", "c"][: seed + 1], n)
    return pd.DataFrame({"number": np.where(rng.random(n) < 0.2, np.nan, numbers), "word": words})


def fitted(frames: list[pd.DataFrame]) -> tuple[TableNote, list[TableNote], list[torch.Tensor]]:
    settings = DataSettings()
    tables = [from_pandas(f, "table") for f in frames]
    notes = [TableNote.begin(t, t.columns, settings) for t in tables]
    raw = [note.read(t).x for note, t in zip(notes, tables, strict=True)]
    told = [note.sums(x) for note, x in zip(notes, raw, strict=True)]
    note = fit(told, settings)
    assert isinstance(note, TableNote)
    assert fit(told[::-1], settings).columns == note.columns  # whatever the order of the clients
    return note, notes, raw


def test_federated_statistics_are_those_of_all_rows_together() -> None:
    frames = [frame(seed, 20 + seed) for seed in range(3)]
    note, notes, raw = fitted(frames)
    everything = pd.concat(frames)
    number, word = note.columns
    assert number.mean == pytest.approx(everything["number"].mean(), rel=1e-15)
    assert number.std == pytest.approx(np.nanstd(everything["number"] - 1e6), rel=1e-6)
    assert (number.low, number.high) == (everything["number"].min(), everything["number"].max())
    assert number.missing
    assert word.categories == ["a", "b", "c"]
    x = torch.cat([old.recoded(rows, note) for old, rows in zip(notes, raw, strict=True)])
    seen = note.module()(x).numpy()
    there = everything["number"].notna().to_numpy()
    expected = (everything["number"] - number.mean) / number.std
    np.testing.assert_allclose(seen[there, 0], expected[there], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(seen[~there, :2], [[0, 1]] * int((~there).sum()))  # the mean, and its flag
    np.testing.assert_array_equal(seen[:, 3:], pd.get_dummies(everything["word"]).to_numpy())
    assert not seen[:, 2].any()  # the slot of what is unknown


def test_each_site_by_its_own_statistics(tmp_path: Path) -> None:
    """data.fit = own against NumPy: a site's rows by the mean and spread of its own training split, and no other's."""
    sites = {"north": frame(0, 40), "south": frame(1, 30).drop(columns="word").assign(number=np.arange(30.0) ** 2)}
    for table in sites.values():
        table["label"] = np.where(np.arange(len(table)) % 2, "yes", "no")
    sites["south"].loc[3, "number"] = np.nan
    settings = {**QUICK["settings"], "data.fit": "own", "personal.enabled": True, "personal.rounds": 1}
    result = fedetf.run(data=sites, rounds=1, epochs=1, settings=settings, engine="serial", out=tmp_path / "run")
    job, place = result.job, 0
    for k, (name, table) in enumerate(sites.items()):
        part, numbers = job.partition.train[k], table["number"].to_numpy()
        trained = numbers[part - place]
        mean, std = np.nanmean(trained), np.nanstd(trained)
        expected = np.nan_to_num((numbers - mean) / std, nan=0.0)
        everything = job.partition.everything(k)
        np.testing.assert_allclose(
            job.dataset.train.x[everything, 0], expected[everything - place], rtol=1e-5, atol=1e-5
        )
        model = fedetf.load(tmp_path / "run", client=name)
        assert model.inputs.note.columns[0].mean == pytest.approx(mean, rel=1e-12)
        held_out = job.partition.test[k]
        right = (
            model.rows(table.assign(word=table.get("word")).iloc[held_out - place]).argmax(1)
            == job.dataset.train.y[held_out]
        )
        assert float(right.double().mean()) == pytest.approx(result.personal_per_client[k])
        place += len(table)
    own = {name: np.isin(job.dataset.test.sites, name).sum() for name in sites}
    assert own == {"north": len(job.partition.test[0]), "south": len(job.partition.test[1])}
    with pytest.raises(UserError, match="each site prepares rows by statistics"):
        fedetf.load(tmp_path / "run")


def test_own_statistics_need_to_know_whose_a_test_sample_is() -> None:
    table = frame(1, 60).assign(label=np.arange(60) % 2)
    with pytest.raises(UserError, match="the test set names none"):
        fedetf.run(data=table, test=table, clients=2, rounds=1, epochs=1, settings={"data.fit": "own"})


def test_what_training_has_not_seen_has_a_slot_of_its_own() -> None:
    note, _, _ = fitted([frame(1)])
    rows = note.read(of_columns({"word": ["zebra", None, "b"], "number": [1e6, None, 1e6]}, "rows")).x
    assert note.module()(rows)[:, 2:].tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1]]


def test_columns_of_codes_can_be_categories() -> None:
    table = from_pandas(pd.DataFrame({"code": [3.0, 1.0, None]}), "table")
    note = TableNote.begin(table, ["code"], DataSettings(categories="code"))
    assert note.columns[0].categories == ["1", "3"]


def test_numbers_here_and_words_there_do_not_fit() -> None:
    with pytest.raises(UserError, match="the column 'c' holds numbers at some sites and words at others"):
        fitted([pd.DataFrame({"c": [1.0]}), pd.DataFrame({"c": ["one"]})])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,label\n1,x\n2,y,z\n", "line 3 has 3 cells, the header 2"),
        (b"a,label\n" + b"1,x\n" * 20 + b"12O,x\n", r"line 22: '12O' in the column 'a', whose other cells are numbers"),
        (b"a,label\n1,caf\xe9\n", "line 2 is not UTF-8; save the file as UTF-8, or convert it: iconv"),
        (b'a,label\n"' + b"x" * (2**24 + 2) + b'",y\n', "line 2: a cell of more than 16,777,216 characters"),
        (b"a,a\n1,2\n", "two columns 'a'"),
        (b"a,\n1,2\n", "column 2 has no name"),
        (b"", "is empty; its first line must name the columns"),
        (b"a,label\n", "no rows below its header"),
        (b"PK\0\0", "holds zero bytes"),
    ],
)
def test_a_bad_csv_file_is_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        read_csv(tmp_path / "t.csv")
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_as_programs_write_it(encoding: str, separator: str, tmp_path: Path) -> None:
    lines = ["age,name,label", '1.5,"Zoë; ""x""",a', "?,NA,b"]
    text = "\r\n".join(line.replace(",", separator) for line in lines)
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    table = read_csv(tmp_path / "t.csv")
    assert table.values("age") == [1.5, None]
    assert table.values("name") == ['Zoë; "x"', None]


def test_between_semicolons_a_comma_is_the_decimal_one(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("size;place;label\n-2,5;3,5 cm;a\n1e3;2,0;b\n;x, y;b\n")
    table = read_csv(tmp_path / "t.csv")
    assert table.values("size") == [-2.5, 1000.0, None]
    assert table.values("place") == ["3,5 cm", "2,0", "x, y"]
    (tmp_path / "t.csv").write_text("size;label\n" + "0,5;x\n" * 20 + "1,234,567;x\n")
    with pytest.raises(UserError, match="line 22: '1,234,567' in the column 'size', whose other cells are numbers"):
        read_csv(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text('codes,label\n"1,2",a\n"2,1",b\n')
    assert read_csv(tmp_path / "t.csv").values("codes") == ["1,2", "2,1"]  # between commas it may be a list


def test_tables_that_do_not_fit_are_named(tmp_path: Path) -> None:
    (tmp_path / "north.csv").write_text("a,b,label\n1,,x\n2,,y\n")
    (tmp_path / "south.csv").write_text("a,b,label\n,low,x\n,high,y\n")
    assert len(as_table(tmp_path, "data")) == 4  # what is empty fits anything
    (tmp_path / "west.csv").write_text("a,b,label\n1,5,x\n2,6,y\n")
    message = f"the column 'b' holds words in {tmp_path}/south.csv and number in {tmp_path}/west.csv"
    with pytest.raises(UserError, match=re.escape(message)):
        as_table(tmp_path, "data")


def test_a_row_without_a_label_is_found_in_its_sites_table(tmp_path: Path) -> None:
    (tmp_path / "north.csv").write_text("a,label\n" + "1,x\n2,y\n" * 10)
    (tmp_path / "south.csv").write_text("a,label\n1,x\n2,y\n3,\n4,\n")
    with pytest.raises(UserError, match=r"2 samples of .* have no label, the first in row 3 of south; label them"):
        fedetf.run(dataset=str(tmp_path), method="fedavg", **QUICK)


def test_files_are_sites_and_a_class_or_a_column_may_be_at_one_of_them_only(tmp_path: Path) -> None:
    (tmp_path / "north.csv").write_text("a,b,label\n" + "1,,x\n2,,y\n" * 10)
    (tmp_path / "south.csv").write_text("a,label\n" + "3,x\n4,rare\n" * 10)
    result = fedetf.run(dataset=str(tmp_path), method="fedavg", **QUICK)
    assert result.partition.sites == ["north", "south"]
    assert result.partition.classes == ["rare", "x", "y"]
    assert [c.name for c in result.job.dataset.note.columns] == ["a", "b"]  # b is empty everywhere, and stays
    assert result.settings.model.name == "mlp"


def test_one_frame_is_dealt_out_by_its_sites_or_drawn() -> None:
    data = pd.DataFrame({"a": np.arange(60.0), "where": ["u", "v", "w"] * 20, "label": np.arange(60) // 30})
    by_site = fedetf.run(data=data, site_column="where", method="fedavg", **QUICK)
    assert by_site.partition.sites == ["u", "v", "w"]
    drawn = fedetf.run(data=data, clients=2, alpha=10.0, method="fedavg", **QUICK)
    assert len(drawn.partition) == 2
    assert [c.name for c in drawn.job.dataset.note.columns] == ["a", "where"]


def test_a_model_of_another_kind_is_one_line() -> None:
    data = pd.DataFrame({"a": np.arange(60.0), "label": np.arange(60) % 2})
    with pytest.raises(UserError, match="resnet20 takes image data, not table data: use the model 'mlp'"):
        fedetf.run(data=data, clients=2, model="resnet20", **QUICK)


# --- texts ------------------------------------------------------------------------------------------------------------


def hashed(word: str) -> int:
    value = 0
    for byte in word.encode()[-32:]:
        value = (value * 1_000_003 + byte + 1) % (2**31 - 1)
    return 1 + value % (2**14 - 1)


@pytest.mark.parametrize("text", ["The cat, the CAT2!", "", "Überraschung — naïve", "x" * 50 + " y", "a" * 3000])
def test_words_are_found_and_hashed(text: str) -> None:
    note = TextNote(column="text", length=2048)
    raw = note.read(of_columns({"text": [text]}, "texts")).x
    small = "".join(c.lower() if c.isascii() else c for c in text)[:2048]
    words = "".join(c if not c.isascii() or c.isalnum() else " " for c in small).split()
    found = [number for number in note.module()(raw)[0].tolist() if number]
    assert found == [hashed(word) for word in words]


@pytest.mark.slow
def test_texts_are_learned_from_and_used(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = {"fruit": ["apple", "pear", "plum"], "metal": ["iron", "zinc", "lead"]}
    y = rng.choice(list(words), 80)
    x = [" ".join(rng.choice([*words[label], "and", "the"], 8)) for label in y]
    settings = {"train.optimiser": "adam", "train.lr": 0.02, "train.batch_size": 8}
    for model in ("textbag", "transformer"):
        estimator = fedetf.FederatedClassifier(rounds=3, epochs=2, encoder=model, settings=settings, random_state=0)
        assert estimator.fit(x, y).score(x, y) > 0.9
        estimator.export(tmp_path / f"{model}.safetensors")
        texts = pd.DataFrame({"text": ["a plum, a pear", "iron!"]})
        likeliest = fedetf.load(tmp_path / f"{model}.safetensors").rows(texts).argmax(1)
        assert likeliest.tolist() == [0, 1]


# --- signals and sound ------------------------------------------------------------------------------------------------


def recordings(n: int = 12) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    signals = [(rng.normal(size=(150 + 10 * k, 2)) * [1, 50] + [0, 7]).tolist() for k in range(n)]
    return pd.DataFrame({"signal": signals, "label": np.arange(n) % 2, "person": [f"p{k % 3}" for k in range(n)]})


@pytest.mark.parametrize("settings", [{"site_column": "person"}, {"clients": 3, "partition": "iid", "min_size": 1}])
def test_windows_of_a_recording_stay_together(settings: dict[str, object], tmp_path: Path) -> None:
    recordings(24).to_parquet(tmp_path / "train.parquet")
    chosen = DataSettings(name=str(tmp_path), length=64, validation_fraction=0.2, **settings)
    dataset = load_dataset(chosen, 7)
    assert not set(dataset.train.groups) & set(dataset.test.groups)
    partition = deal_out(dataset, chosen, 7)
    splits = [*partition.train, *partition.test, *partition.validation]
    seen = [set(dataset.train.groups[part].tolist()) for part in splits]
    assert sum(map(len, seen)) == len(set().union(*seen)) == len(set(dataset.train.groups))
    assert sum(map(len, splits)) == len(dataset.train)
    labels = dataset.train.y.numpy()
    assert partition.counts.tolist() == [np.bincount(labels[part], minlength=2).tolist() for part in partition.train]


def test_signals_are_cut_standardised_and_used(tmp_path: Path) -> None:
    data = recordings()
    run = fedetf.run(
        data=data,
        site_column="person",
        method="fedavg",
        out=tmp_path / "run",
        rounds=1,
        epochs=1,
        settings={"data.length": 64, "personal.enabled": False},
    )
    note = run.job.dataset.note
    assert isinstance(note, SignalNote)
    trained = run.job.dataset.train.x[np.concatenate(run.partition.train)].double()
    assert [c.mean for c in note.channels] == pytest.approx(trained.mean((0, 2)).tolist())
    assert [c.std for c in note.channels] == pytest.approx(trained.std((0, 2), unbiased=False).tolist())
    model = fedetf.load(tmp_path / "run")
    raw = note.read(from_pandas(data, "data"))
    first = raw.x[raw.rows == 0]
    assert torch.equal(first[1, :, :32], first[0, :, 32:])  # windows overlap by half
    torch.testing.assert_close(model.rows(data)[0], model(first).mean(0).detach())


def wav(rate: int, samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    wavfile.write(file, rate, samples)
    return file.getvalue()


def test_log_mel_spectrograms_are_scipys() -> None:
    wave = np.random.default_rng(0).normal(size=4000).astype(np.float32)
    _, _, spectrum = stft(
        wave, 8000, "hann", nperseg=256, noverlap=128, boundary=None, padded=False, scaling="spectrum"
    )
    power = np.abs(spectrum * 128) ** 2  # SciPy divides by the sum of the window
    expected = np.log(mel_bands(8000, 256).T @ power + 1e-6)
    np.testing.assert_allclose(LogMel(8000, 4000)(torch.from_numpy(wave)[None])[0], expected, atol=1e-3)


def test_sound_of_any_rate_and_width_is_read() -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    stereo = np.stack([tone, tone], axis=1)
    kinds = [(stereo * 32767).astype(np.int16), (tone * 127 + 128).astype(np.uint8), tone.astype(np.float32)]
    note = SoundNote(column="audio")
    raw = note.read(of_columns({"audio": [wav(16_000, samples) for samples in kinds]}, "sounds"))
    assert raw.x.shape == (3, 8000)
    wanted = np.sin(2 * np.pi * 440 * np.arange(8000) / 8000)
    for wave in raw.x.numpy():
        np.testing.assert_allclose(wave[200:-200], wanted[200:-200], atol=0.02)
    with pytest.raises(UserError, match="row 1: not a readable WAV file"):
        note.read(of_columns({"audio": [b"RIFFrubbish"]}, "sounds"))


def test_a_folder_of_sounds_by_site_and_class(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        for label, pitch in (("low", 200), ("high", 2000)):
            folder = tmp_path / "sounds" / site / label
            folder.mkdir(parents=True)
            for k in range(6):
                tone = np.sin(2 * np.pi * pitch * np.arange(2000) / 8000 + rng.random()) * 0.5
                (folder / f"{k}.wav").write_bytes(wav(8000, tone.astype(np.float32)))
    settings = {"data.length": 2000, "train.batch_size": 4, "personal.enabled": False, "train.lr": 0.05}
    result = fedetf.run(
        dataset=str(tmp_path / "sounds"), method="fedavg", rounds=3, epochs=2, settings=settings, out=tmp_path / "run"
    )
    assert result.partition.sites == ["north", "south"]
    assert result.settings.model.name == "cnn1d"
    assert result.general == 1.0


# --- from strangers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0, 1, 10**9])
def test_a_rate_that_no_sound_has_is_one_line(rate: int) -> None:
    content = io.BytesIO()
    wavfile.write(content, 8000, np.ones(40_000, np.int16))
    header = bytearray(content.getvalue())
    header[24:32] = np.array([rate, 2 * rate], "<u4").tobytes()
    sounds = of_columns({"sound": [bytes(header)]}, "a table")
    with pytest.raises(UserError, match="steps a second cannot be brought to 8000"):
        SoundNote(column="sound").read(sounds)


def test_a_note_cannot_ask_for_spectra_of_gigabytes() -> None:
    with pytest.raises(ValueError, match="rate"):
        SoundNote(column="sound", rate=1e6, length=2**20)
    with pytest.raises(UserError, match=r"give another data\.rate"):
        SoundNote.begin(of_columns({"sound": [b""]}, "a table"), ["sound"], DataSettings(rate=1e6))


@pytest.mark.parametrize("cell", [[1.0], b"x", {"x": 1}])
def test_what_is_no_number_is_one_line_whatever_its_type(cell: object) -> None:
    with pytest.raises(UserError, match="in the column 'a' is not a number"):
        TableNote(columns=[{"name": "a"}]).read(of_columns({"a": [cell]}, "a table"))


def test_text_that_is_not_utf_8_is_one_line() -> None:
    text = pyarrow.array([b"\xff\xfe"]).view(pyarrow.string())
    with pytest.raises(UserError, match="the column 'a' cannot be read"):
        of_columns({"a": text}, "a table").values("a")


@pytest.mark.parametrize("label", [7, -1, 0.5, "x"])
def test_a_label_without_a_name_is_one_line(label: object) -> None:
    note = {"huggingface": '{"info": {"features": {"label": {"_type": "ClassLabel", "names": ["a", "b"]}}}}'}
    frame = Frame(pyarrow.table({"label": [label]}).replace_schema_metadata(note), "a table")
    with pytest.raises(UserError, match="but names 2 classes"):
        frame.named("label")


@pytest.mark.parametrize(("kind", "columns"), [("sound", 3), ("signal", 5000), ("table", 12_000)])
def test_sums_that_make_no_note_are_one_line(kind: str, columns: int) -> None:
    names = [f"c/{i}" for i in range(columns)]
    told = [
        Sums(kind=kind, columns=[{"name": name} for name in part]) for part in (names[:10_000], names[10_000:]) if part
    ]
    with pytest.raises(UserError, match=f"does not make a {kind}"):
        fit(told, DataSettings())


@pytest.mark.parametrize("kind", KINDS)
def test_sums_name_a_column(kind: str) -> None:
    with pytest.raises(ValueError, match="columns"):
        Sums(kind=kind, rows=5, columns=[])


def test_a_text_has_no_more_words_than_bytes() -> None:
    with pytest.raises(ValueError, match="more words than bytes"):
        TextNote(column="text", length=8, tokens=9)


def test_without_the_library_a_tokenizer_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedetf.errors.find_spec", lambda name: None)
    texts = pd.DataFrame({"text": ["one", "two"] * 20, "label": [0, 1] * 20})
    with pytest.raises(
        UserError, match=r"data.tokenizer needs tokenizers; install it with: pip install 'fedetf\[text\]'"
    ):
        fedetf.run(data=texts, clients=2, rounds=1, settings={"data.tokenizer": str(tmp_path / "tokenizer.json")})


def test_what_is_odd_about_sites_is_said_and_nothing_is_dropped(tmp_path: Path, capsys) -> None:
    (tmp_path / "data").mkdir()
    for seed, name in enumerate(("north", "south")):
        table = frame(1, 40).assign(label=np.where(np.arange(40) % 2, "yes", "no"), pulse=60.0 + seed)
        if name == "south":
            table.loc[:2, "label"] = "unsure"
            table["pulse"] = np.nan
            table["patient"] = [f"P{row}" for row in range(len(table))]
        table.to_csv(tmp_path / "data" / f"{name}.csv", index=False)
    quick = ["--rounds", "1", "--epochs", "1", "--engine", "serial", "--out", str(tmp_path / "run")]
    assert main(["run", "--dataset", str(tmp_path / "data"), *quick, "--set", "personal.enabled=false"]) == 0
    said = capsys.readouterr().err
    assert "at one site only: the class 'unsure' (south, samples: 3); if that is a slip of the pen, mend it" in said
    assert "without a single value, taken for missing: patient at north; pulse at south" in said
    assert "another word in every row: patient at south; if it names the row, leave it out: data.leave_out" in said
    held = json.loads((tmp_path / "run" / "partition.json").read_text())["clients"]
    assert sum(len(client["train"]) + len(client["test"]) for client in held) == 80
    strange = frame(1, 4).assign(word=["a", "z", "z", None], pulse=60.0, patient="")
    strange.to_csv(tmp_path / "new.csv", index=False)
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "new.csv")]) == 0
    answered = capsys.readouterr()
    assert "the column 'word' holds a category that training has not seen, in 2 rows" in answered.err
    assert len(answered.out.splitlines()) > 4
