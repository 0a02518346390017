"""Compact curves, to be stored by the thousand: the label's lead over its closest rivals, for drawing.

What a curve proves is in its record; this is a picture of it, within a thousandth of its height. It takes 300 to 2,000
bytes: up to 128 places, and at each the lead over up to 4 rivals in 16 bits.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from shakeproof.proof import Interval, Result

Floats = NDArray[np.float64]
RIVALS, MOST_PLACES, FEW_PLACES, TOLERANCE = 4, 128, 96, 1e-3
LEVELS = 2**15 - 1
HEADER = struct.Struct("<HBf")


@dataclass(frozen=True, eq=False)
class DrawnCurve:
    """The label's lead over some rivals, (places, rivals), at increasing strengths z (places); straight in between.

    Those are the classes that come closest to the label, the closest first; a rival of -1 stands for whichever is best,
    and of another requirement for the margin by which it holds.
    Over a stretch that is `bridged` (places - 1), nobody looked between its ends: it is proved that the leader leads.
    """

    z: Floats
    rivals: NDArray[np.int64]
    leads: Floats
    bridged: NDArray[np.bool_]

    @property
    def margin(self) -> Floats:
        """The lead over the best rival (places)."""
        margin: Floats = self.leads.min(1)
        return margin

    def packed(self) -> bytes:
        scale = float(np.float32(np.abs(self.leads).max(initial=0.0))) or 1.0
        levels = np.clip(np.rint(self.leads / scale * LEVELS), -LEVELS, LEVELS).astype("<i2")
        parts = (
            HEADER.pack(len(self.z), len(self.rivals), scale),
            self.rivals.astype("<i4").tobytes(),
            self.z.astype("<f4").tobytes(),
            np.packbits(self.bridged).tobytes(),
            levels.T.tobytes(),
        )
        return zlib.compress(b"".join(parts))

    @staticmethod
    def unpacked(data: bytes) -> DrawnCurve:
        plain = zlib.decompress(data)
        places, count, scale = HEADER.unpack_from(plain)
        at = HEADER.size
        rivals = np.frombuffer(plain, "<i4", count, at)
        at += rivals.nbytes
        z = np.frombuffer(plain, "<f4", places, at)
        at += z.nbytes
        bits = np.frombuffer(plain, np.uint8, -(-max(places - 1, 0) // 8), at)
        at += bits.nbytes
        levels = np.frombuffer(plain, "<i2", places * count, at).reshape(count, places)
        bridged = np.unpackbits(bits, count=max(places - 1, 0)).astype(bool)
        return DrawnCurve(z.astype(np.float64), rivals.astype(np.int64), levels.T * (scale / LEVELS), bridged)


def drawn(result: Result, profile: Sequence[Interval]) -> DrawnCurve | None:
    """The compact curve of an answer with this profile; None without a curve of one strength."""
    from shakeproof.proof import Enumerated, Swept

    if result.query.parameters != 1:
        return None
    if isinstance(result.proof, Enumerated):
        z, margins = result.proof.pictures.strengths(len(result.proof.margins))[:-1], result.proof.margins
        leads = np.asarray(margins, dtype=np.float64)[:, None]
        return _simplified(z, np.array([-1]), leads, np.zeros(max(len(z) - 1, 0), bool)) if len(z) else None
    if not isinstance(result.proof, Swept) or not len(result.proof.curve.z):
        return None
    curve, label = result.proof.curve, result.proof.label
    z, bridged = curve.z, curve.bridged
    if not result.record.is_about_label:
        return _simplified(z, np.array([-1]), curve.margin(label)[:, None], bridged)
    leads = curve.leads(label)
    rivals = np.argsort(leads.min(0), kind="stable")[: min(RIVALS, leads.shape[1] - 1)]
    new = np.setdiff1d([part.start for part in profile[1:]], z)
    if len(new):  # where a line crosses zero, it should be seen to
        places, there = np.searchsorted(z, new), curve.at(new)
        leads = np.insert(leads, places, there[:, [label]] - there, axis=0)
        z, bridged = np.insert(z, places, new), np.insert(bridged, places - 1, False)  # no class changes on a bridge
    return _simplified(z, rivals, leads[:, rivals], bridged)


def _simplified(z: Floats, rivals: NDArray[np.int64], leads: Floats, bridged: NDArray[np.bool_]) -> DrawnCurve:
    """As few of the rows as draw the same lines: the farthest from the lines drawn so far are added, round by round."""
    if len(z) <= FEW_PLACES:
        return DrawnCurve(z, rivals, leads, bridged)
    leads = np.nan_to_num(leads)
    within = TOLERANCE * float(np.ptp(leads)) or 1.0
    kept = np.unique([0, len(z) - 1, *np.flatnonzero(np.diff(bridged)) + 1, *leads.argmin(0)])
    while len(kept) < MOST_PLACES:
        off = np.max([np.abs(lead - np.interp(z, z[kept], lead[kept])) for lead in leads.T], axis=0)
        if not (off > within).any():
            break
        starts = kept[:-1]
        worst = np.maximum.reduceat(off[:-1], starts)
        order = np.argsort(-worst)[: MOST_PLACES - len(kept)]
        wide = [number for number in order.tolist() if worst[number] > within]
        kept = np.union1d(kept, [starts[n] + off[starts[n] : kept[n + 1]].argmax() for n in wide])
    return DrawnCurve(z[kept], rivals, leads[kept], np.logical_and.reduceat(bridged, kept[:-1]))
