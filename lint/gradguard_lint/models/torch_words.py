"""Names of PyTorch's operations, methods and modules, by what they do."""

from __future__ import annotations

from gradguard_lint.words import words

NOT_SMOOTH = words(
    "argmax argmin argsort eq ne lt le gt ge equal allclose isclose isnan isinf isfinite any "
    "all nonzero count_nonzero bincount unique histc bucketize searchsorted sign round floor "
    "ceil long int bool byte short numel size dim is_tensor is_floating_point argwhere "
    "logical_and logical_or logical_not logical_xor multinomial bernoulli one_hot "
    "floor_divide isin matrix_rank"
)
"""Operations whose result has no history."""

HEAVY = words(
    "matmul mm bmm addmm einsum linear conv1d conv2d conv3d svd eigh cholesky inverse "
    "pinverse solve matrix_power matrix_exp svdvals eigvalsh lstsq qr fft cdist baddbmm "
    "tensordot bilinear"
)
"""Operations that start the native compute threads."""

REDUCTIONS = words(
    "all amax amin any max mean median min nanmean nansum prod std sum var allclose equal isclose "
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy"
)
"""Operations that start compute threads for large tensors, and reduce them to one number or a
smaller tensor.

Observed not to: argmax, cumsum, gather, norm, softmax of a vector, topk.
"""

ELEMENTWISE = words(
    "abs absolute add addcdiv addcmul ceil clamp clamp_max clamp_min clone copy cos cosh div "
    "divide elu eq erf exp exp2 expm1 fill floor ge gelu gt isnan le leaky_relu lerp log log10 "
    "log1p log2 logical_and logical_not logical_or lt masked_fill maximum minimum mul multiply "
    "nan_to_num ne neg negative pow reciprocal relu relu6 round rsqrt selu sigmoid sign silu sin "
    "sinh softplus sqrt square sub subtract tan tanh where cat concat concatenate stack hstack "
    "vstack zero"
)
"""Elementwise operations that do so, also in place."""

BY_SIZE = ELEMENTWISE | REDUCTIONS
"""Operations that start the native compute threads for large tensors only."""

FILLED = words("zeros ones full arange linspace logspace zeros_like ones_like full_like randperm")
"""Functions that do so to create a large tensor; drawing its elements takes one thread."""

VIEW_ATTRIBUTES = words("T mT H mH real imag")
"""Attributes of tensors that are views."""

COMPUTED = VIEW_ATTRIBUTES | words(
    "abs add amax amin bmm clamp clone contiguous cos cosh div dot double exp expand flatten float "
    "half log log1p log_softmax logsumexp matmul mean mm mul narrow neg norm permute pow prod relu "
    "repeat reshape sigmoid sin softmax sqrt square squeeze std sub sum t tanh to transpose "
    "unsqueeze var view"
)
"""Methods and attributes of tensors computed from the tensor and the arguments."""

CLEARS = words("zero_ fill_")
"""Methods that overwrite a gradient completely."""

GIVES = words(
    "add_ addcmul_ copy_ index_add_ index_copy_ lerp_ put_ scatter_ scatter_add_ set_ sub_"
)
"""Methods that assign values to a gradient."""

STOPS = words("item tolist numpy data_ptr element_size storage")
"""Methods of tensors that return plain values."""

OF_TENSORS = words("detach cpu cuda requires_grad grad grad_fn backward")
"""Attributes of torch tensors that arrays and containers lack."""

COUNTS = words("size dim numel ndimension nelement")
"""Methods that return the size of a tensor."""

QUESTIONS = words(
    "is_contiguous is_floating_point get_device type_as stride retain_grad is_cuda share_memory_"
)
"""Methods of tensors that compute nothing."""

OF_MODULES = words(
    "parameters named_parameters buffers named_buffers modules named_modules children "
    "named_children state_dict train eval"
)
"""Methods that only modules have, and that don't compute."""

HOOKS = words("register_hook register_post_accumulate_grad_hook")
"""Methods that register a hook on a tensor."""

STAYS_BEHIND = "stays-behind"
"""The mark of a hook that is meant to stay in its process."""

MODULE_METHODS = words(
    "buffers children modules named_buffers named_children named_modules named_parameters "
    "parameters share_memory"
)
"""Methods that only torch modules have."""

PARAMETERS = words("weight bias in_proj_weight in_proj_bias")
"""Attribute names of modules for parameters."""

SEVERAL = words(
    "split chunk unbind tensor_split broadcast_tensors meshgrid svd qr eigh split_with_sizes"
)
"""Operations that return several tensors."""

WITH_INDICES = words("topk sort kthvalue mode cummax cummin")
"""Operations that return values and their indices."""

ALONG = words("max min median nanmedian")
"""Operations that do so when called with a dimension."""

WHOLE = words("uint8 uint16 uint32 uint64 int8 int16 short int32 int int64 long bool")
"""Types of tensors without history."""

ARRANGES = words(
    "clone cat concat concatenate stack hstack vstack dstack split chunk unbind tensor_split "
    "flip fliplr flipud rot90 roll squeeze unsqueeze transpose permute movedim reshape flatten "
    "narrow select index_select gather masked_select take tile repeat_interleave broadcast_to "
    "pad interpolate"
)
"""Operations that reorder or copy their arguments, as in data preparation."""

SETTINGS = words(
    "dim dims keepdim dtype size scale_factor mode align_corners p training inplace reduction "
    "kernel_size stride padding dilation groups eps"
)
"""Arguments of functions that aren't tensors."""

DRAWS = words("randn rand randint randperm normal rand_like randn_like randint_like")
DRAWS_OF = words("multinomial bernoulli poisson")
"""Functions that draw with given probabilities; most are methods, too."""

DATA = words("tensor as_tensor asarray scalar_tensor")
"""Functions whose argument is the elements, not the size."""

IN_PLACE_DRAWS = words("random_ normal_ uniform_ bernoulli_ exponential_")

ELEMENTS = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
}
"""Aliases of element types."""

CASTS = words("double float half int long short bool bfloat16")
"""Methods that convert to another type, or return the tensor itself."""

VIEWS = words(
    "view reshape squeeze unsqueeze t transpose permute flatten ravel narrow select swapaxes "
    "expand expand_as view_as movedim"
)
"""Methods that return the same memory in another shape."""

RESHAPES = words("reshape flatten ravel")
"""Methods that copy non-contiguous tensors."""

IN_ORDER = RESHAPES | words("view view_as squeeze unsqueeze")
"""Methods that keep the order of elements in memory."""

TURNS = words("t transpose permute swapaxes movedim")
"""Methods that reorder the dimensions."""

KEEPS_COUNT = ELEMENTWISE | IN_ORDER | TURNS | CASTS | {"contiguous"}
"""Methods whose result has as many elements as their largest operand."""

ORDERS = ARRANGES | VIEWS | CASTS | words("contiguous parameters_to_vector")
"""Operations that return their arguments' values, reordered, converted or combined."""

NOT_WRITING = words(
    "requires_grad_ detach_ squeeze_ unsqueeze_ t_ transpose_ swapaxes_ swapdims_ as_strided_ "
    "rename_ resize_ share_memory_ set_ retain_grad_ sparse_resize_"
)
"""In-place methods of tensors that change no element."""

WITH_FUNCTIONS = words("torch torch.nn.functional torch.special torch.linalg torch.fft")
"""Packages with functions that return tensors."""

GIVE_ONE = words(
    "abs absolute acos add addbmm addcdiv addcmul addmm addmv addr arange as_tensor asin atan "
    "atan2 avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d baddbmm "
    "batch_norm binary_cross_entropy binary_cross_entropy_with_logits bmm broadcast_to cat cdist "
    "celu clamp clamp_max clamp_min clip clone concat concatenate conv1d conv2d conv3d "
    "conv_transpose1d conv_transpose2d conv_transpose3d cos cosh cosine_embedding_loss "
    "cosine_similarity cross cross_entropy ctc_loss cumprod cumsum det deg2rad diag diag_embed "
    "diagonal diff dist div divide dot dropout dropout1d dropout2d dropout3d einsum elu "
    "embedding empty erf erfc exp exp2 expm1 eye fft fft2 flatten flip frac full full_like "
    "gather gelu glu group_norm hardtanh hinge_embedding_loss hstack huber_loss ifft "
    "index_select inner instance_norm interpolate inv inverse irfft kl_div kron l1_loss "
    "layer_norm leaky_relu lerp linear linspace log log10 log1p log2 log_softmax logaddexp "
    "logdet logit logsumexp margin_ranking_loss masked_fill masked_select matmul matrix_exp "
    "matrix_norm matrix_power mean minimum maximum mish mm moveaxis movedim mse_loss mul "
    "multi_margin_loss multiply mv nan_to_num nanmean nansum narrow neg negative nll_loss norm "
    "normalize one_hot ones ones_like outer pad pairwise_distance permute pinv pinverse "
    "pixel_shuffle pow prod rand rand_like randn randn_like real reciprocal relu relu6 "
    "repeat_interleave reshape rfft roll rot90 rsqrt scaled_dot_product_attention scatter "
    "scatter_add select selu sigmoid silu sin sinc sinh smooth_l1_loss soft_margin_loss softmax "
    "softmin softplus softsign solve sqrt square squeeze stack std sub subtract sum take tan "
    "tanh tensor tensordot tile trace transpose tril triplet_margin_loss triu unfold unsqueeze "
    "upsample var vdot vecdot vector_norm vstack where zeros zeros_like"
)
"""Functions, and methods, that always return one tensor."""

METHODS_GIVE_ONE = words(
    "bfloat16 clamp_ contiguous cpu cuda detach detach_ double expand expand_as float half mul_ "
    "add_ sub_ div_ repeat requires_grad_ sum_to_size t to type_as view view_as zero_"
)
"""Methods that always return one tensor."""

TO_ONE = words(
    "all amax amin any max mean median min nanmean nansum norm prod std sum var vector_norm "
    "matrix_norm"
)
"""Operations that reduce a tensor to a number, unless called with a dimension or another tensor."""

ONE_OF_ALL = words("max min median nanmedian amax amin")
"""Operations that return one tensor when called without a dimension."""

_PLAIN = words(
    "LocalResponseNorm Dropout Dropout1d Dropout2d Dropout3d AlphaDropout ReLU ReLU6 "
    "LeakyReLU RReLU ELU SELU CELU GELU SiLU Mish Sigmoid LogSigmoid Tanh Softplus Softsign "
    "Softshrink Hardshrink Hardtanh Hardswish Hardsigmoid Tanhshrink Threshold GLU Softmax "
    "Softmax2d Softmin LogSoftmax AvgPool1d AvgPool2d AvgPool3d AdaptiveAvgPool1d "
    "AdaptiveAvgPool2d AdaptiveAvgPool3d LPPool1d LPPool2d Flatten Unflatten PixelShuffle "
    "PixelUnshuffle Upsample UpsamplingNearest2d UpsamplingBilinear2d Fold Unfold ZeroPad1d "
    "ZeroPad2d ConstantPad1d ConstantPad2d ReflectionPad1d ReflectionPad2d ReplicationPad2d"
)
"""Modules without parameters that return one tensor."""

LAYERS = _PLAIN | words(
    "Linear Bilinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d "
    "LazyLinear LazyConv1d LazyConv2d LazyConv3d BatchNorm1d BatchNorm2d BatchNorm3d "
    "SyncBatchNorm LayerNorm GroupNorm RMSNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d "
    "PReLU MaxUnpool1d MaxUnpool2d MaxUnpool3d Embedding EmbeddingBag CosineSimilarity "
    "PairwiseDistance RNNCell GRUCell Transformer TransformerEncoder TransformerDecoder "
    "TransformerEncoderLayer TransformerDecoderLayer L1Loss MSELoss CrossEntropyLoss "
    "CTCLoss NLLLoss PoissonNLLLoss GaussianNLLLoss KLDivLoss BCELoss BCEWithLogitsLoss "
    "MarginRankingLoss HingeEmbeddingLoss MultiLabelMarginLoss HuberLoss SmoothL1Loss "
    "SoftMarginLoss CosineEmbeddingLoss MultiMarginLoss TripletMarginLoss"
)
"""Modules that return one tensor; not recurrent ones or attention, which may return several."""

POOLS = words(
    "MaxPool1d MaxPool2d MaxPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d "
    "FractionalMaxPool2d FractionalMaxPool3d"
)
"""Modules that return one tensor, unless indices are requested."""

CHANGE_PARTS = words("append extend insert pop add_module register_module register_forward_hook")
"""Methods after which calling a module may run other code."""

STATISTICS = words(
    "BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm LazyBatchNorm1d LazyBatchNorm2d "
    "LazyBatchNorm3d"
)
"""Modules that keep running statistics."""

IF_TRACKED = words("InstanceNorm1d InstanceNorm2d InstanceNorm3d")
"""Modules that keep running statistics if configured to."""

NORMED = tuple(
    words(
        "densenet efficientnet googlenet inception mnasnet mobilenet regnet resne shufflenet "
        "wide_resnet"
    )
)
"""Prefixes of the names of networks with such modules."""

BUFFERS = words("running_mean running_var num_batches_tracked")
"""The names of their statistics."""

DROPOUTS = words(
    "Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout "
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout"
)
"""Modules and functions that draw in training mode."""

WEIGHTLESS = _PLAIN | words(
    "Identity MaxPool2d MaxPool1d FeatureAlphaDropout MaxPool3d AdaptiveMaxPool1d "
    "AdaptiveMaxPool2d AdaptiveMaxPool3d FractionalMaxPool2d FractionalMaxPool3d "
    "ChannelShuffle ZeroPad3d ConstantPad3d ReflectionPad3d ReplicationPad1d "
    "ReplicationPad3d"
)
"""Modules without parameters."""

STATEFUL = words(
    "eval train float double half apply type share_memory to_empty bfloat16 requires_grad_"
)
"""Methods of modules that return the module."""
