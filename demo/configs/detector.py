"""RTMDet cut down to under a million parameters, for the shapes drawn by demo/make_dataset.py.

A normal mmdet config; run it from the root of the repository, where ``demo/data`` is.
"""

_base_ = 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py'

data_root = 'demo/data/'
metainfo = dict(
    classes=('disc', 'square', 'triangle', 'ring', 'star', 'cross'),
    palette=[(220, 60, 50), (60, 180, 75), (0, 110, 230), (250, 190, 40), (200, 60, 220), (0, 190, 200)],
)
image_size = (224, 224)
max_epochs = 18
base_lr = 0.002

norm_cfg = dict(type='BN')
model = dict(
    backbone=dict(
        # [in, out, blocks, add identity, SPP] of each stage: the last ones are narrower than in the P5 model.
        arch_ovewrite=[
            [64, 128, 3, True, False],
            [128, 256, 6, True, False],
            [256, 384, 6, True, False],
            [384, 384, 3, False, True],
        ],
        widen_factor=0.25,
        norm_cfg=norm_cfg,
        init_cfg=None,
    ),
    neck=dict(in_channels=[64, 96, 96], out_channels=64, num_csp_blocks=1, norm_cfg=norm_cfg),
    bbox_head=dict(in_channels=64, feat_channels=64, num_classes=len(metainfo['classes']), norm_cfg=norm_cfg),
    test_cfg=dict(nms_pre=1000, score_thr=0.05, nms=dict(type='nms', iou_threshold=0.6), max_per_img=100),
)

train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=None),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomResize', scale=image_size, ratio_range=(0.8, 1.4), keep_ratio=True),
    dict(type='RandomCrop', crop_size=image_size),
    dict(type='YOLOXHSVRandomAug'),
    dict(type='RandomFlip', prob=[0.25, 0.25, 0.25], direction=['horizontal', 'vertical', 'diagonal']),
    dict(type='Pad', size=image_size, pad_val=dict(img=(114, 114, 114))),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=None),
    dict(type='Resize', scale=image_size, keep_ratio=True),
    dict(type='Pad', size=image_size, pad_val=dict(img=(114, 114, 114))),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]

train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    persistent_workers=False,
    pin_memory=False,
    dataset=dict(
        data_root=data_root,
        metainfo=metainfo,
        ann_file='train/instances.json',
        data_prefix=dict(img='train/images/'),
        filter_cfg=dict(filter_empty_gt=False),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=8,
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        data_root=data_root,
        metainfo=metainfo,
        ann_file='val/instances.json',
        data_prefix=dict(img='val/images/'),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(ann_file=data_root + 'val/instances.json')
test_evaluator = val_evaluator

train_cfg = dict(max_epochs=max_epochs, val_interval=6, dynamic_intervals=None)
optim_wrapper = dict(optimizer=dict(lr=base_lr), clip_grad=dict(max_norm=35))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=200),
    dict(
        type='CosineAnnealingLR',
        eta_min=base_lr * 0.02,
        begin=0,
        end=max_epochs,
        T_max=max_epochs,
        by_epoch=True,
        convert_to_iter_based=True,
    ),
]
default_hooks = dict(
    logger=dict(interval=50),
    checkpoint=dict(interval=6, max_keep_ckpts=1),
)
custom_hooks = [
    # A short run: the average has to forget the first epochs sooner than in the library's 300 epochs.
    dict(type='EMAHook', ema_type='ExpMomentumEMA', momentum=0.002, gamma=200, update_buffers=True, priority=49),
]
randomness = dict(seed=0)
