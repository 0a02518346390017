"""Where does the bundled traffic-sign classifier change its mind as a motion blur grows?"""

import shakeproof as sp
from shakeproof import demo

network = sp.load(demo.MODEL)
picture, label = demo.images()[0]

result = sp.profile(network, picture, sp.motion_blur(size=9, angle=45), label=label)
print(f"{picture.name}: {result.status}, {result.pieces} linear pieces")
for interval in result.profile:
    print(f"  from {interval.start:.6f} to {interval.end:.6f}: {demo.CLASSES[interval.winner]}")
if result.critical_strength is not None:
    print(f"the label is safe up to {result.critical_strength[0]:.9f}")
