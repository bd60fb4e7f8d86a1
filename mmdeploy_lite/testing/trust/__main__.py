"""``python -m mmdeploy_lite.testing.trust OUT.json JOB``: one job, as :func:`.parts.run_in_process` starts it."""

import json
import sys
from pathlib import Path

from mmdeploy_lite.testing.trust.parts import Job, run

entry = json.loads(sys.argv[2])
found = run(Job(entry['part'], entry['job'], tuple(entry['arguments'])))
Path(sys.argv[1]).write_text(json.dumps(found), encoding='utf-8')
