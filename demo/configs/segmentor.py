"""UPerNet on a narrow ResNet-18, tested with a sliding window, for the shapes drawn by demo/make_dataset.py.

A normal mmseg config; run it from the root of the repository, where ``demo/data`` is.
"""

_base_ = ['mmseg::_base_/models/upernet_r50.py', 'mmseg::_base_/default_runtime.py']

data_root = 'demo/data/'
metainfo = dict(
    classes=('sky', 'ground', 'disc', 'square', 'triangle', 'ring', 'star', 'cross'),
    palette=[
        (135, 190, 235),
        (110, 95, 75),
        (220, 60, 50),
        (60, 180, 75),
        (0, 110, 230),
        (250, 190, 40),
        (200, 60, 220),
        (0, 190, 200),
    ],
)
num_classes = len(metainfo['classes'])
crop_size = (128, 128)
max_iters = 3000
base_lr = 0.002

norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    data_preprocessor=dict(size=crop_size),
    pretrained=None,
    backbone=dict(
        depth=18,
        stem_channels=16,
        base_channels=16,
        num_stages=3,
        strides=(1, 2, 2),
        dilations=(1, 1, 1),
        out_indices=(0, 1, 2),
        norm_cfg=norm_cfg,
    ),
    decode_head=dict(
        in_channels=[16, 32, 64],
        in_index=[0, 1, 2],
        pool_scales=(1, 2, 3),
        channels=48,
        num_classes=num_classes,
        norm_cfg=norm_cfg,
        # Sky and ground cover nine tenths of the pixels.
        loss_decode=dict(class_weight=[0.4, 0.4] + [1.6] * (num_classes - 2)),
    ),
    auxiliary_head=None,
    test_cfg=dict(mode='slide', crop_size=crop_size, stride=(96, 96)),
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(320, 256), ratio_range=(0.8, 1.4), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.85),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(320, 256), keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]

train_dataloader = dict(
    batch_size=16,
    num_workers=0,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root,
        metainfo=metainfo,
        data_prefix=dict(img_path='train/images', seg_map_path='train/labels'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root,
        metainfo=metainfo,
        data_prefix=dict(img_path='val/images', seg_map_path='val/labels'),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator

train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=1000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=base_lr, weight_decay=0.02))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type='PolyLR', eta_min=1e-5, power=0.9, by_epoch=False, begin=0, end=max_iters),
]
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=max_iters, max_keep_ckpts=1),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='SegVisualizationHook'),
)
randomness = dict(seed=0)
