"""vLLM's benchmark: what `vllm bench serve` runs, but that command also asks for a distribution called vllm."""

import sys

# Built for another torch than the one for CPUs: importing them fails. A benchmark does without.
sys.modules.update(dict.fromkeys(("torchvision", "torchaudio", "torchcodec")))

from vllm.benchmarks.serve import add_cli_args, main  # noqa: E402
from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
