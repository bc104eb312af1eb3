"""torch.distributed: collectives, DistributedDataParallel, samplers; and libraries on top."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row
from gradguard_lint.words import words

LIGHTNING = "lightning.pytorch.LightningModule"
"""The class whose `training_step` returns the loss that Lightning differentiates."""

JOINING = words("init_process_group init_rpc init_device_mesh init_distributed")
"""Functions that join a process group, from any library."""

JOINING_NONE = words(
    "torch torchvision torchaudio torchtext torchinfo torchsummary tensorboard tensorboardX wandb "
    "numpy pandas scipy sklearn skimage PIL cv2 imageio matplotlib seaborn plotly tqdm rich yaml "
    "h5py lmdb requests psutil joblib networkx numba einops timm albumentations kornia nltk "
    "sentencepiece pycocotools nibabel SimpleITK easydict yacs termcolor colorama tabulate "
    "prettytable click dotenv thop six pynvml GPUtil setproctitle efficientnet_pytorch "
    "pretrainedmodels segmentation_models_pytorch torchmetrics medpy lpips openpyxl gdown"
)
"""Packages that join no process group unless the program calls one of these functions."""

LIBRARY = Library(
    tops=("accelerate",),
    spelled={
        "torch.distributed.distributed_c10d.": "torch.distributed.",
        "torch.nn.parallel.distributed.": "torch.nn.parallel.",
        "torch.utils.data.distributed.": "torch.utils.data.",
        "torch.utils.data.sampler.": "torch.utils.data.",
        "lightning.LightningModule": LIGHTNING,
        "pytorch_lightning.": "lightning.pytorch.",
        "lightning.Fabric": "lightning.fabric.Fabric",
        "lightning.fabric.fabric.": "lightning.fabric.",
        "lightning_fabric.": "lightning.fabric.",
    },
    rows=(
        Row("apex.parallel.LARC.LARC", "identity", argument=(0, "optimizer")),
        Row("apex.amp.scale_loss", "identity", argument=(0, "loss")),
        Row(
            "torch.distributed.all_gather",
            "collective",
            argument=(1, "tensor"),
            output=(0, "tensor_list"),
        ),
        Row(
            "torch.distributed.all_gather_into_tensor torch.distributed.all_gather_single "
            "torch.distributed._all_gather_base",
            "collective",
            argument=(1, "input_tensor"),
            output=(0, "output_tensor"),
        ),
        Row(
            "torch.distributed.all_gather_object",
            "collective",
            argument=(1, "obj"),
            output=(0, "object_list"),
        ),
        Row(
            "torch.distributed.gather",
            "collective",
            argument=(0, "tensor"),
            output=(1, "gather_list"),
        ),
        Row(
            "torch.distributed.broadcast",
            "collective",
            argument=(0, "tensor"),
            output=(0, "tensor"),
            flag="in-place",
        ),
        Row("accelerate.utils.gather", "collective", argument=(0, "tensor"), flag="returned"),
        Row(
            "torch.distributed.all_reduce torch.distributed.all_reduce_coalesced "
            "torch.distributed.reduce torch.distributed.reduce_scatter "
            "torch.distributed.reduce_scatter_tensor torch.distributed.reduce_scatter_single",
            "reduced",
        ),
        Row(
            "torch.distributed.nn.* torch.distributed._functional_collectives.*", "tensor-function"
        ),
        Row("torch.distributed.is_initialized torch.distributed.is_available", "asks-group"),
        Row("torch.distributed.get_world_size", "asks-world"),
        Row("torch.distributed.get_rank", "asks-rank"),
        Row("torch.nn.parallel.DistributedDataParallel", "data-parallel", argument=(0, "module")),
        Row("torch.utils.data.DistributedSampler", "sampler"),
        Row(
            "accelerate.utils.set_seed accelerate.utils.random.set_seed",
            "seed",
            flag="random numpy torch",
        ),
        Row("accelerate.Accelerator", "accelerator", driver=True),
        Row("lightning.fabric.Fabric", "accelerator"),
        Row("accelerate.PartialState accelerate.state.PartialState", "nothing", driver=True),
    ),
)
