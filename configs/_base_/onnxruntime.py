# What every deployment starts from. Override any key in a deploy config, in `deploy` of the model config, or with
# `--cfg-options deploy.KEY=VALUE`.
deploy = dict(
    # 'TorchExportExporter' for torch.export, see docs/exporters.md; opset=N for another than the exporter's own
    exporter=dict(type='TorchScriptExporter'),
    backend=dict(type='ONNXRuntimeBackend', providers=['CPUExecutionProvider']),
    # dtype: 'float32' or 'uint8'.
    # shape: (h, w) of `image`, fixed in the graph; None keeps height and width dynamic where the model allows.
    # runtime_pipeline: the file says how the runtime prepares an image; False: it does not, and you do it yourself
    # batch_size: images per run, fixed in the graph; None for any number.
    # preprocess: 'graph': `image` is what the test pipeline leaves; 'none': what the data preprocessor leaves
    input=dict(dtype='float32', shape=None, batch_size=1, preprocess='graph', runtime_pipeline=True),
    # None: detections, with masks where the model has them, or seg_map. Else 'raw' (a one-stage detector's head),
    # 'roi_masks' (masks over boxes, not pasted), 'seg_logits' or 'seg_probs'
    outputs=None,
    # True: answers in original pixels. False: in pixels of `image`, without the inputs scale_factor and ori_shape
    rescale=True,
    # precision='fp16' or dict(type='int8', calibration=FOLDER): also model.fp16.onnx or model.int8.onnx, smaller and
    # less exact, with the loss measured; see docs/precision.md
    # True: the weights are a file of their own, model.<hash>.data beside model.onnx. Above 2 GB they always are
    external_data=False,
    optimize=True,
    # convolutions of 3 x 3 by Winograd's algorithm, with half of the multiplications, see docs/file.md. None: on CPUs;
    # True: for any provider; not with optimize=False
    winograd=None,
    tolerance=dict(),  # see mmdeploy_lite/check/tolerance.py; a loosened one is named in the report
    rewriters=dict(
        not_in_onnx_export=dict(type='NotInOnnxExport'),
        fields_in_order=dict(type='FieldsInOrder'),
        length=dict(type='Length'),
        instance_fields=dict(type='InstanceFields'),
        nonzero=dict(type='Nonzero'),
        truth=dict(type='Truth'),
        shape_as_tensor=dict(type='ShapeAsTensor'),
        float_range=dict(type='FloatRange'),
        squeeze=dict(type='Squeeze'),
        new_tensor=dict(type='NewTensor'),
        view_of_rows=dict(type='ViewOfRows'),
        frozen_range=dict(type='FrozenRange'),
        deep_copy=dict(type='DeepCopy'),
        ceil=dict(type='Ceil'),
        interpolate=dict(type='Interpolate'),
        diag=dict(type='Diag'),
        deform_conv=dict(type='DeformConv'),
        modulated_deform_conv=dict(type='ModulatedDeformConv'),
        adaptive_padding=dict(type='AdaptivePadding'),
        shift_window_msa=dict(type='ShiftWindowMSA'),
        conv2d_adaptive_padding=dict(type='Conv2dAdaptivePadding'),
        merge_cell_resize=dict(type='MergeCellResize'),
        merge_cell_forward=dict(type='MergeCellForward'),
        group_norm=dict(type='GroupNorm'),
        linspace=dict(type='Linspace'),
        multi_scale_deformable_attention=dict(type='MultiScaleDeformableAttention'),
        adaptive_avg_pool2d=dict(type='AdaptiveAvgPool2d'),
        adaptive_max_pool2d=dict(type='AdaptiveMaxPool2d'),
    ),
)
