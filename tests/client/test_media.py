"""Images, texts and tables on their way to the daemon: read at once, bounded, and never in the way of the values."""

from __future__ import annotations

import io
import json
import struct
import threading
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from client.router import undrained, unsent_rows
from PIL import Image
from processes import eventually

import trackside
from trackside.limits import ARRAY_SIDE, MEDIA_BYTES
from trackside.media.pixels import Pixels, PngError, check, encode, read
from trackside.media.tables import COLUMNS, ROWS, histogram_json, table_json
from trackside.row_queue import MEDIA_BYTES_WAITING
from trackside.transport.session import OLDER
from trackside.wire import MediaItem, Pushes, Welcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.router import Router

RANDOM = np.random.default_rng(1)


def seen(image: Any) -> Any:
    """Return the pixels that another decoder sees in what would be sent."""
    found = read(image)
    return np.asarray(Image.open(io.BytesIO(found.png() if isinstance(found, Pixels) else found)))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_whole_numbers_are_shown_as_they_are(channels: int) -> None:
    array = RANDOM.integers(0, 256, (5, 7, channels)).astype("uint8")
    expected = array[:, :, 0] if channels == 1 else array
    assert np.array_equal(seen(array), expected)
    assert np.array_equal(seen(np.ascontiguousarray(array.transpose(2, 0, 1))[None]), expected)


def test_other_numbers_are_from_0_to_1_and_what_is_beyond_is_cut() -> None:
    array = np.array([[0.0, 0.5, 1.0], [-1.0, float("nan"), float("inf")]], "float64")
    assert seen(array).tolist() == [[0, 127, 255], [0, 0, 255]]
    assert seen(array > 0).tolist() == [[0, 255, 255], [0, 0, 255]]
    assert seen(np.array([[-5, 300]])).tolist() == [[0, 255]]


def test_tensors_have_their_channels_first() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.rand(3, 4, 3, requires_grad=True)
    expected = (tensor.detach().numpy().transpose(1, 2, 0) * 255).astype("uint8")
    assert np.array_equal(seen(tensor), expected)
    assert seen(tensor.to(torch.bfloat16)).shape == (4, 3, 3)


def test_pictures_figures_and_files_are_images_without_what_else_they_hold() -> None:
    array = RANDOM.integers(0, 256, (6, 4, 3)).astype("uint8")
    picture = Image.fromarray(array)
    assert np.array_equal(seen(picture), array)
    assert seen(picture.convert("P")).shape == (6, 4, 3)
    file = io.BytesIO()
    picture.save(file, "PNG", exif=b"Exif\0\0secret", dpi=(70, 70))
    assert b"secret" in file.getvalue()
    found = read(file.getvalue())
    assert isinstance(found, bytes)
    assert b"secret" not in found
    assert np.array_equal(seen(file.getvalue()), array)
    figures = pytest.importorskip("matplotlib.figure")
    assert seen(figures.Figure(figsize=(1, 1))).shape == (100, 100, 4)


def test_large_images_become_smaller() -> None:
    found = read(np.zeros((3 * ARRAY_SIDE, 10, 3), "uint8"))
    assert isinstance(found, Pixels)
    assert found[:3] == (4, ARRAY_SIDE, 3)
    assert seen(np.zeros((ARRAY_SIDE + 1, 10), "uint8")).shape == (ARRAY_SIDE // 2 + 1, 5)
    noise = RANDOM.integers(0, 256, (ARRAY_SIDE, ARRAY_SIDE, 3)).astype("uint8")
    assert (
        MEDIA_BYTES["image"] / 8 < len(Pixels(ARRAY_SIDE, ARRAY_SIDE, 3, noise.tobytes()).png()) <= MEDIA_BYTES["image"]
    )
    assert np.array_equal(seen(noise), noise[::2, ::2])


HEADER = struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 0)
GRAY = encode(2, 2, 1, b"abcd")


def chunk(kind: bytes, content: bytes, checksum: int = 0) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum or zlib.crc32(kind + content))


def file(header: bytes, data: bytes, *others: bytes) -> bytes:
    packed = chunk(b"IDAT", zlib.compress(data))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(others) + packed + chunk(b"IEND", b"")


def sized(width: int, height: int, *rest: int) -> bytes:
    return struct.pack(">IIBBBBB", width, height, *(rest or (8, 0, 0, 0, 0)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"<svg onload='alert(1)'/>", "does not begin"),
        (b"", "does not begin"),
        (GRAY[:8], "no header"),
        (GRAY[:-4], "cut off"),
        (GRAY[:40], "cut off"),
        (GRAY[:20] + b"\xff" + GRAY[21:], "checksum"),
        (file(sized(100_000, 100_000), b"\0"), "too many"),
        (file(sized(4096, 2048), b"\0"), "too many"),
        (file(sized(0, 1), b""), "too many"),
        (file(sized(2, 2, 8, 5, 0, 0, 0), b"\0ab\0cd"), "format is unknown"),
        (file(sized(2, 2, 8, 0, 0, 0, 1), b"\0ab\0cd"), "interlaced"),
        (file(sized(2, 2, 8, 3, 0, 0, 0), b"\0ab\0cd"), "palette"),
        (file(HEADER, b"\0ab\0c"), "does not match"),
        (file(HEADER, b"\0ab\0cd" + bytes(100_000_000)), "does not match"),
        (file(HEADER, b"\x09ab\0cd"), "does not match"),
        (GRAY.replace(zlib.compress(b"\0ab\0cd", 6), b"x" * 14), "checksum"),
    ],
)
def test_what_is_no_image_is_refused_and_a_bomb_is_not_unpacked(data: bytes, reason: str) -> None:
    with pytest.raises(PngError, match=reason):
        check(data)
    with pytest.raises(ValueError, match="PNG"):
        read(data)


def test_only_the_chunks_of_a_picture_are_retained() -> None:
    extra = chunk(b"tEXt", b"Comment\0<script>"), chunk(b"iCCP", b"x"), chunk(b"acTL", bytes(8))
    assert check(file(HEADER, b"\0ab\0cd", *extra)) == (2, 2, file(HEADER, b"\0ab\0cd"))
    assert check(file(HEADER, b"\0ab\0cd") + b"<script>").data == file(HEADER, b"\0ab\0cd")


@pytest.mark.parametrize("wrong", [np.zeros((2, 3, 4, 5)), np.zeros((0, 3)), np.array([["a"]]), 3, "<svg>", None])
def test_what_is_no_image_at_all_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="no image"):
        read(wrong)


def table(rows: Any, columns: list[str] | None = None) -> Any:
    return json.loads(table_json(rows, columns))


def test_rows_columns_and_data_frames_are_tables() -> None:
    expected = {"columns": ["a", "b"], "rows": [[1, "x"], [2.5, None]], "omitted": 0}
    assert table([{"a": 1, "b": "x"}, {"a": 2.5}]) == expected
    assert table([(1, "x"), (2.5, None)], ["a", "b"]) == expected
    assert table({"a": [1, 2.5], "b": ["x"]}) == expected
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    assert table(pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]}))["rows"] == [[1, "x"], [2, "y"]]
    assert table(polars.DataFrame({"a": [1, 2], "b": ["x", None]}))["rows"] == [[1, "x"], [2, None]]
    assert table([[float("nan"), np.float32(0.5), True, {"x": 1}]])["rows"] == [["nan", 0.5, True, "{'x': 1}"]]


def test_tables_are_bounded() -> None:
    long = table([[number] * 100 for number in range(5000)])
    assert (len(long["columns"]), len(long["rows"]), len(long["rows"][0])) == (COLUMNS, ROWS, COLUMNS)
    assert long["omitted"] == 4000
    wide = table_json([["x" * 5000] * 10] * 900)
    assert len(wide) <= MEDIA_BYTES["table"]
    with pytest.raises(ValueError, match="rows"):
        table_json("text")


def test_a_histogram_counts_every_finite_number() -> None:
    values = RANDOM.normal(size=1000)
    values[:3] = float("nan"), float("inf"), 0.0
    of_array, of_numbers = (json.loads(histogram_json(one)) for one in (values, values.tolist()))
    assert of_array["nonfinite"] == of_numbers["nonfinite"] == 2
    assert sum(of_array["counts"]) == sum(of_numbers["counts"]) == 998
    assert of_array["edges"] == pytest.approx(of_numbers["edges"])
    assert sum(abs(a - b) for a, b in zip(of_array["counts"], of_numbers["counts"], strict=True)) <= 4  # at the edges
    assert sum(json.loads(histogram_json([3.0, 3.0]))["counts"]) == 2
    assert sum(json.loads(histogram_json(np.zeros(3_000_000)))["counts"]) == 1_000_000
    with pytest.raises(ValueError, match="no finite number"):
        histogram_json(np.array([float("nan")]))


@pytest.fixture
def sent(router: Router) -> Callable[[], list[MediaItem]]:
    """Welcome the client, and return all that it sends until its end."""

    def items() -> list[MediaItem]:
        (messages,) = router.serve(welcome=Welcome(("media",))).values()
        return [item for message in messages if isinstance(message.body, Pushes) for item in message.body.media]

    return items


def test_a_run_sends_them_with_their_steps_and_without_secrets(
    router: Router,
    sent: Callable[[], list[MediaItem]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRACKSIDE_FLUSH_TIMEOUT", "0")  # the router answers afterwards
    run = trackside.init("media", endpoint=router.endpoint)
    run.push(step=4, loss=1.0)
    run.log_image("image", np.array([[7, 8]], "uint8"))
    run.log_text("text", f"key=1 HF_TOKEN={'x' * 20}" + "y" * 100_000, step=9)
    trackside.log_table("table", [{"HF_TOKEN": "s" * 20, "loss": 1.5}])
    run.log_image("wrong", "no image")
    run.log_image("wrong", "no image")
    run.finish()
    image, text, table_item = sent()
    assert (image.kind, image.key, image.step, check(image.data)[:2]) == ("image", "image", 4, (2, 1))
    assert (text.kind, text.step) == ("text", 9)
    assert text.data.startswith(b"key=1 HF_TOKEN=[redacted]")
    assert len(text.data) < 70_000
    assert json.loads(table_item.data)["rows"] == [["[redacted]", 1.5]]
    (warning,) = [record.getMessage() for record in caplog.records if "wrong" in record.getMessage()]
    assert warning.startswith("trackside: image wrong: ValueError: a str is no image; it is dropped")


def test_arguments_by_position_that_have_a_name_count_with_a_warning(
    router: Router,
    sent: Callable[[], list[MediaItem]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRACKSIDE_FLUSH_TIMEOUT", "0")
    run: Any = trackside.init("old", endpoint=router.endpoint)
    package: Any = trackside
    run.log_text("a", "text", 3)
    package.log_text("b", "text", 4, "more")
    package.log_table("c", [{"x": 1}], 5, columns=["x"])
    run.alert("title", "text", "info")
    package.alert("title", "text", "critical")
    run.finish()
    assert [item.step for item in sent()] == [3, 4, 5]
    found = [record.getMessage() for record in caplog.records if "by position" in record.getMessage()]
    assert len(found) == len(set(found)) == 3


@pytest.mark.parametrize("stores", [(), ("distributions",), ("media",)])
def test_a_daemon_that_may_store_none_of_them_is_one_line_in_the_trainings_log(
    router: Router, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stores: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TRACKSIDE_FLUSH_TIMEOUT", "30")
    run = trackside.init("media", endpoint=router.endpoint)
    hello = router.expect("hello")
    router.answer(hello, "welcome", 0, Welcome(stores) if stores else None)
    run.push(step=4, loss=1.0)
    for step in range(3):
        run.log_text("text", "words", step=step)
    threading.Thread(target=router.serve).start()
    run.finish()
    lines = [record.getMessage() for record in caplog.records if "not be stored" in record.getMessage()]
    assert lines == [
        f"trackside: images, texts, tables and histograms may not be stored: {OLDER}" for _ in {"media"} - {*stores}
    ]


def test_too_many_bytes_are_dropped_and_the_values_are_not(
    run: trackside.Run, caplog: pytest.LogCaptureFixture
) -> None:
    session = run.queue.session
    with undrained(run):
        for step in range(300):
            run.push(step=step, loss=1.0)
            run.log_text("text", "x" * 2**15, step=step)
        assert (session.media_in, session.refused) == (MEDIA_BYTES_WAITING, 300 - MEDIA_BYTES_WAITING // 2**15)
        assert sum(values is not None for _, _, values in session.rows) == 300
        session.rows.clear()
    assert sum("faster than they can be sent" in record.getMessage() for record in caplog.records) == 1


def test_without_a_daemon_they_do_not_crowd_out_values(run: trackside.Run, caplog: pytest.LogCaptureFixture) -> None:
    for step in range(200):
        run.push(step=step, loss=1.0)
        run.log_text("text", "x y" * 10_000, step=step)
    rows, totals = unsent_rows(run)
    assert [step for step, _ in rows] == [*range(200)]
    assert 0 < totals.dropped < 200
    eventually(lambda: any("dropped while no daemon accepts them" in one.getMessage() for one in caplog.records))
