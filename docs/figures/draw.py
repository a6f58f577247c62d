"""Draws the figures of the concept pages, as SVG beside this file.

python docs/figures/draw.py

Each figure is a function that puts boxes, arrows and texts on a sheet. Colours mean the same in all
of them: teal is work or data of a request, orange another one's, grey what is empty or waits.
"""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

folder = Path(__file__).parent
ink, muted, line = "#14222a", "#53666f", "#b9c7cd"
teal, teal_soft = "#0b6e7f", "#d5edf1"
orange, orange_soft = "#b5621b", "#fbe6d3"
violet, violet_soft = "#4a56b8", "#e3e6fb"
green, green_soft = "#17713f", "#dcf1e4"
grey_soft = "#eef3f5"
fills = {teal: teal_soft, orange: orange_soft, violet: violet_soft, green: green_soft,
         muted: grey_soft}  # fmt: skip


@dataclass
class Sheet:
    """A drawing of so many units."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(  # noqa: PLR0917 -- a drawing is read as numbers in their order
        self, x: float, y: float, w: float, h: float, text: str = "", colour: str = muted, *,
        note: str = "", dashed: bool = False, size: int = 14,
    ) -> None:  # fmt: skip
        """A box with a text in its middle, and a smaller note below it."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6" fill="{fills[colour]}" '
            f'stroke="{colour}" stroke-width="1.4"{dash}/>'
        )
        middle = y + h / 2
        if text:
            self.text(x + w / 2, middle + (-3 if note else 5), text, size=size, bold=True)
        if note:
            self.text(x + w / 2, middle + 15, note, size=12, colour=muted)

    def text(
        self, x: float, y: float, text: str, *, size: int = 13, colour: str = ink,
        anchor: str = "middle", bold: bool = False,
    ) -> None:  # fmt: skip
        """A line of text."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"'
            f"{weight}>{escape(text)}</text>"
        )

    def arrow(
        self, x1: float, y1: float, x2: float, y2: float, colour: str = muted, *,
        dashed: bool = False, text: str = "",
    ) -> None:  # fmt: skip
        """An arrow, with a text beside its middle."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" '
            f'stroke-width="1.8" marker-end="url(#head)"{dash}/>'
        )
        if text:
            self.text((x1 + x2) / 2 + 6, (y1 + y2) / 2 - 6, text, size=12, colour=muted,
                      anchor="start" if x1 == x2 else "middle")  # fmt: skip

    def svg(self) -> str:
        """The whole drawing."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'role="img" aria-label="{escape(self.title)}" font-family="system-ui, sans-serif">\n'
            f"<title>{escape(self.title)}</title>\n"
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="{muted}"/></marker>'
            "</defs>\n"
            f'<rect width="{self.width}" height="{self.height}" rx="10" fill="#ffffff"/>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def layers() -> Sheet:
    """From a device to an invoice."""
    sheet = Sheet(760, 430, "The layers of models as a service")
    rows = (
        ("Business", "tenants, prices, budgets, invoices", violet, "headrace: ledger, billing"),
        ("Gateway", "keys, limits, queue, route, meter", teal, "headrace: gateway, router"),
        ("Control", "models, deployments, scaling, placement", teal, "headrace: control"),
        ("Engine", "batching, KV cache, sampling", green, "headrace, vLLM, SGLang, llama.cpp …"),
        ("Platform", "processes, Kubernetes, Ray", orange, "headrace: launchers"),
        ("Devices", "CPUs, GPUs, links, memory", muted, "yours"),
    )
    for number, (name, what, colour, who) in enumerate(rows):
        y = 46 + 62 * number
        sheet.box(30, y, 430, 50, name, colour, note=what)
        sheet.text(490, y + 30, who, anchor="start", colour=muted)
    sheet.text(30, 28, "A request goes down, tokens and counts come up", anchor="start", bold=True)
    sheet.arrow(14, 60, 14, 400)
    sheet.arrow(476, 400, 476, 60)
    return sheet


def paged_kv() -> Sheet:
    """Block tables over one pool."""
    sheet = Sheet(760, 340, "Paged KV: each request's table names blocks of one pool")
    sheet.text(30, 30, "Block tables", anchor="start", bold=True)
    sheet.text(430, 30, "The pool, blocks of 16 tokens", anchor="start", bold=True)
    tables = (("request A", (2, 7, 4), teal), ("request B", (2, 7, 9, 0), orange))
    held: dict[int, list[str]] = {}
    for row, (name, blocks, colour) in enumerate(tables):
        y = 60 + 120 * row
        sheet.text(30, y + 24, name, anchor="start", colour=colour, bold=True)
        for place, block in enumerate(blocks):
            sheet.box(120 + 56 * place, y, 48, 40, str(block), colour)
            held.setdefault(block, []).append(colour)
        sheet.text(120, y + 60, f"tokens 0 to {16 * len(blocks) - 5}", anchor="start", size=12,
                   colour=muted)  # fmt: skip
    for block in range(12):
        x, y = 430 + 76 * (block % 4), 50 + 70 * (block // 4)
        colours = held.get(block, [])
        shared = len(colours) > 1
        colour = violet if shared else colours[0] if colours else muted
        note = "shared" if shared else "" if colours else "free"
        sheet.box(x, y, 66, 56, str(block), colour, note=note, dashed=not colours)
    sheet.arrow(362, 140, 422, 140)
    sheet.text(30, 302, "A and B begin alike, so blocks 2 and 7 are computed and kept once.",
               anchor="start")  # fmt: skip
    sheet.text(30, 322, "Nothing is moved when a request grows: it takes any free block.",
               anchor="start", colour=muted)  # fmt: skip
    return sheet


def continuous_batching() -> Sheet:
    """Slots that refill at every step, against a batch that waits for its longest."""
    sheet = Sheet(760, 400, "Continuous batching: a finished request's place is taken at once")
    step = 38
    colours = (teal, orange, violet, green)
    sheet.text(30, 30, "A batch that starts and ends together", anchor="start", bold=True)
    for row, length in enumerate((4, 9, 2, 6)):
        for place in range(9):
            done = place >= length
            sheet.box(110 + step * place, 44 + 32 * row, step - 5, 26, "", muted if done
                      else colours[row], dashed=done)  # fmt: skip
        sheet.text(30, 62 + 32 * row, f"request {row + 1}", anchor="start", size=12)
    sheet.text(470, 66, "grey: computed for nobody", anchor="start", colour=muted, size=12)
    sheet.text(470, 86, "request 5 waits for the longest", anchor="start", colour=muted, size=12)
    sheet.text(30, 210, "Continuous: every step takes whoever is there", anchor="start", bold=True)
    slots = (((1, 4), (5, 6)), ((2, 9),), ((3, 2), (6, 7)), ((4, 6), (7, 4)))
    for row, members in enumerate(slots):
        place = 0
        for number, length in members:
            colour = colours[(number - 1) % 4]
            for index in range(length):
                text = str(number) if index == 0 else ""
                sheet.box(110 + step * place, 224 + 32 * row, step - 5, 26, text, colour, size=12)
                place += 1
        sheet.text(30, 242 + 32 * row, f"place {row + 1}", anchor="start", size=12)
    sheet.arrow(110, 370, 480, 370)
    sheet.text(492, 374, "steps of the engine", anchor="start", size=12, colour=muted)
    return sheet


def chunked_prefill() -> Sheet:
    """A long prompt in pieces beside running answers."""
    sheet = Sheet(760, 380, "Chunked prefill: a long prompt is computed in pieces beside answers")
    sheet.text(30, 30, "The whole prompt in one step: everybody waits", anchor="start", bold=True)
    x = 110.0
    for kind, width in (("d", 34), ("d", 34), ("p", 300), ("d", 34), ("d", 34), ("d", 34)):
        colour = orange if kind == "p" else teal
        sheet.box(x, 44, width - 4, 34, "prompt of 4,000 tokens" if kind == "p" else "", colour,
                  size=12)  # fmt: skip
        x += width
    sheet.text(30, 66, "steps", anchor="start", size=12)
    sheet.text(220, 104, "a pause that every reader sees", colour=orange, size=12, anchor="start")
    sheet.text(30, 160, "In chunks: each step has its answers' tokens and a piece", anchor="start",
               bold=True)  # fmt: skip
    for place in range(8):
        x = 110 + 66 * place
        sheet.box(x, 176, 60, 26, "", teal)
        is_chunk = 1 <= place <= 6
        sheet.box(x, 206, 60, 56, f"{place}/6" if is_chunk else "", orange if is_chunk else muted,
                  dashed=not is_chunk, size=12)  # fmt: skip
    sheet.text(30, 194, "answers", anchor="start", size=12, colour=teal)
    sheet.text(30, 238, "prompt", anchor="start", size=12, colour=orange)
    sheet.parts.append(
        f'<line x1="104" y1="278" x2="640" y2="278" stroke="{line}" stroke-width="1.2"/>'
    )
    sheet.text(110, 300, "A chunk is as long as the step's time allows (--target-step-ms),",
               anchor="start")  # fmt: skip
    sheet.text(110, 320, "measured on this machine: answers keep their pace.", anchor="start")
    sheet.text(110, 348, "The first token comes a little later, and no other one does.",
               anchor="start", colour=muted)  # fmt: skip
    return sheet


def router() -> Sheet:
    """One decision."""
    sheet = Sheet(760, 400, "The router: filter, cost in seconds, lease")
    sheet.box(24, 150, 130, 66, "request", teal, note="prompt, session")
    sheet.arrow(156, 183, 196, 183)
    replicas = (
        ("replica 1", "full", "left out: no room", muted),
        ("replica 2", "cold", "1.9 s = 1.2 prompt + 0.7 queue", orange),
        ("replica 3", "has the prefix", "0.6 s = 0.1 prompt + 0.5 queue", teal),
        ("replica 4", "draining", "left out: drains", muted),
    )
    sheet.box(200, 30, 350, 310, "", muted)
    sheet.text(375, 54, "what it would cost each, and the others there", size=12, colour=muted)
    for row, (name, state, cost, colour) in enumerate(replicas):
        y = 70 + 64 * row
        sheet.box(216, y, 120, 52, name, colour, note=state, dashed=colour is muted)
        sheet.text(348, y + 31, cost, anchor="start", size=12,
                   colour=muted if colour is muted else ink)  # fmt: skip
    sheet.arrow(552, 224, 596, 224)
    sheet.box(600, 190, 136, 66, "lease", teal, note="until it ends")
    sheet.text(24, 372, "Own requests that are under way count at once, not when an engine is "
               "asked the next time.", anchor="start", colour=muted, size=12)  # fmt: skip
    return sheet


def planes() -> Sheet:
    """What wants, and what carries."""
    sheet = Sheet(760, 410, "Control plane and data plane meet in the store")
    sheet.box(24, 30, 712, 120, "", violet)
    sheet.text(40, 52, "control plane: what shall be", anchor="start", bold=True, colour=violet)
    for x, name, note in (
        (44, "admin API", "CLI, console, files"), (218, "autoscaler", "how many"),
        (392, "placement", "where"), (566, "reconciler", "one step, again"),
    ):  # fmt: skip
        sheet.box(x, 70, 150, 60, name, violet, note=note)
    sheet.box(206, 186, 240, 56, "store and ledger", green, note="SQLite or PostgreSQL")
    sheet.arrow(119, 132, 224, 184)
    sheet.arrow(293, 132, 293, 184)
    sheet.arrow(420, 184, 453, 132)
    sheet.arrow(448, 208, 588, 132)
    sheet.box(190, 280, 546, 110, "", teal)
    sheet.text(206, 302, "data plane: what is asked", anchor="start", bold=True, colour=teal)
    sheet.box(24, 316, 122, 60, "customer", muted)
    sheet.box(206, 316, 210, 60, "gateway", teal, note="its own snapshot and journal")
    sheet.box(566, 316, 150, 60, "replicas", teal, note="any engine")
    sheet.arrow(148, 346, 202, 346)
    sheet.arrow(418, 346, 562, 346)
    sheet.arrow(406, 244, 406, 312, dashed=True)
    sheet.text(24, 266, "If the control plane stops, requests go on.", anchor="start", size=12,
               colour=muted)  # fmt: skip
    sheet.arrow(641, 132, 641, 312, dashed=True)
    sheet.text(650, 222, "starts, probes", anchor="start", size=12, colour=muted)
    return sheet


figures = (layers, paged_kv, continuous_batching, chunked_prefill, router, planes)


def main() -> None:
    """Write every figure."""
    for figure in figures:
        path = folder / f"{figure.__name__.replace('_', '-')}.svg"
        path.write_text(figure().svg())


if __name__ == "__main__":
    main()
